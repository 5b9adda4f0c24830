//! Changes of the masquerade policy, announced to the sweeper of translated flows.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use loader::intent::masquerade::MasqueradeSettings;
use loader::kernel::{MapEntry, Object};
use policy::PolicyEngine;

use flows as nat;

/// Notifies the garbage collection of translated flows about changes of policy.
pub(crate) struct PolicyWatch {
    nat: nat::Handle,
    settings: MasqueradeSettings,
    announced: Option<Arc<PolicyEngine>>,
}

impl PolicyWatch {
    pub(crate) fn new(nat: nat::Handle, settings: MasqueradeSettings) -> Self {
        Self {
            nat,
            settings,
            announced: None,
        }
    }

    /// Announces the policy if the desired map entries give another one than before.
    ///
    /// Must be called before the maps change. From then on the programs look up flows everywhere,
    /// so that translated flows stay as they are.
    pub(crate) fn announce(&mut self, objects: &BTreeSet<Object>) -> Result<()> {
        self.put(PolicyEngine::new(objects, &self.settings))
    }

    /// Announces further objects, beside those that were announced.
    pub(crate) fn announce_more(&mut self, objects: &BTreeSet<Object>) -> Result<()> {
        // A plan of some endpoints does not know all of what else is to be.
        let is_address =
            |object: &&Object| matches!(object, Object::MapEntry(MapEntry::Address(..)));
        let addresses = objects.iter().filter(is_address);
        match &self.announced {
            Some(announced) => self.put(PolicyEngine::clone(announced).with(addresses)),
            None => self.announce(objects),
        }
    }

    fn put(&mut self, engine: PolicyEngine) -> Result<()> {
        let engine = Arc::new(engine);
        let announced = self.announced.as_deref();
        if announced.is_none_or(|announced| engine.differs_from(announced)) {
            let policy: Arc<dyn nat::FlowPolicy> = Arc::<PolicyEngine>::clone(&engine);
            self.nat
                .policy_changes(policy)
                .context("keep translated flows across a change of policy")?;
        }
        self.announced = Some(engine);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use datapath_common::abi::DestinationClass;
    use datapath_common::masquerade::PoolPolicy;

    use super::*;
    use loader::kernel::fixture::address_entry;

    struct Count(Arc<AtomicUsize>);

    impl nat::LookupControl for Count {
        fn set(&self, lookups: nat::CompatLookups) -> Result<()> {
            assert_eq!(lookups, nat::CompatLookups::ALL);
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn only_a_change_of_policy_is_told() {
        let count = Arc::new(AtomicUsize::new(0));
        let nat = nat::Handle::new(Arc::new(Count(Arc::clone(&count)))).unwrap();
        let mut watch = PolicyWatch::new(nat, MasqueradeSettings::default());
        let object = |net: &str, class| {
            let entry = MapEntry::Destination(net.parse().unwrap(), class);
            Object::MapEntry(entry)
        };
        let one = BTreeSet::from([object("10.0.0.0/8", DestinationClass::VPC)]);
        let unrelated =
            BTreeSet::from([object("10.0.0.0/8", DestinationClass::VPC), Object::Up(7)]);
        let wider = BTreeSet::from([object("10.0.0.0/7", DestinationClass::VPC)]);
        // At the start the programs look up flows everywhere anyway.
        for (objects, announced) in [
            (&one, 2),
            (&one, 2),
            (&unrelated, 2),
            (&wider, 3),
            (&one, 4),
        ] {
            watch.announce(objects).unwrap();
            assert_eq!(count.load(Ordering::Relaxed), announced);
        }
    }

    #[test]
    fn of_an_endpoints_own_objects_only_a_change_of_its_address_is_told() {
        let count = Arc::new(AtomicUsize::new(0));
        let nat = nat::Handle::new(Arc::new(Count(Arc::clone(&count)))).unwrap();
        let mut watch = PolicyWatch::new(nat, MasqueradeSettings::default());
        watch.announce(&BTreeSet::new()).unwrap();
        let address = |eni, pool| {
            let entry = address_entry(eni, pool);
            Object::MapEntry(MapEntry::Address("10.0.1.65".parse().unwrap(), entry))
        };
        let net = "10.0.0.0/8".parse().unwrap();
        let other = Object::MapEntry(MapEntry::Destination(net, DestinationClass::VPC));
        let (masquerade, skip) = (PoolPolicy::Masquerade, PoolPolicy::Skip);
        for (object, announced) in [
            (other, 2),
            (address(0, masquerade), 2),
            (address(0, masquerade), 2),
            (address(2, masquerade), 3),
            (address(2, skip), 4),
        ] {
            watch.announce_more(&BTreeSet::from([object])).unwrap();
            assert_eq!(count.load(Ordering::Relaxed), announced, "{object:?}");
        }
    }
}
