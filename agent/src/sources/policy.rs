//! What the masquerade policy and the services' addresses are read from, and who has to hear of changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use loader::intent::ClusterServices;
use loader::kernel::{MapEntry, Object};
use loader::masquerade::{AgentCidrs, MasqueradeSettings, Policy, Pools};
use loader::policy::Judge;
use tokio::sync::watch;

use crate::cluster::{ServicesSource, Unenforced};
use crate::sources::follow::Followed;
use crate::sources::used_pools::UsedPools;
use crate::sources::{masq_agent, pools};
use flows as nat;

/// The files as they are followed; none where the configuration names none. In a cluster some of it is
/// objects.
#[derive(Debug, Default)]
pub(crate) struct PolicyFiles {
    pools: Option<watch::Receiver<Followed<Pools>>>,
    agent: Option<watch::Receiver<Followed<AgentCidrs>>>,
    cluster: Option<OfCluster>,
    used: UsedPools,
}

/// What a cluster tells.
#[derive(Debug)]
pub(crate) struct OfCluster {
    /// The services' addresses.
    pub(crate) services: watch::Receiver<ServicesSource>,
    /// Network policies that nobody may enforce, where that is looked for.
    pub(crate) unenforced: Option<watch::Receiver<Unenforced>>,
    /// Why the Node may still keep pods off.
    pub(crate) keeps_off: watch::Receiver<Option<String>>,
}

impl PolicyFiles {
    /// Reads the files that the settings name, and follows them.
    pub(crate) fn follow(settings: &MasqueradeSettings, used: UsedPools) -> Self {
        let MasqueradeSettings { pools, agent, .. } = settings;
        Self {
            pools: pools.clone().map(pools::watch),
            agent: agent.clone().map(masq_agent::watch),
            cluster: None,
            used,
        }
    }

    /// The same with the pools of a cluster, and what else it tells.
    pub(crate) fn follow_cluster(
        settings: &MasqueradeSettings,
        (pools, used): (watch::Receiver<Followed<Pools>>, UsedPools),
        cluster: OfCluster,
    ) -> Self {
        Self {
            pools: Some(pools),
            agent: settings.agent.clone().map(masq_agent::watch),
            cluster: Some(cluster),
            used,
        }
    }

    /// Waits for a change of any.
    pub(crate) async fn changed(&mut self) {
        let Self {
            pools,
            agent,
            cluster,
            used: _,
        } = self;
        let services = cluster.as_mut().map(|cluster| &mut cluster.services);
        tokio::select! {
            () = changed(pools.as_mut()) => {}
            () = changed(agent.as_mut()) => {}
            () = changed(services) => {}
        }
    }

    /// What is known of the cluster's services.
    pub(crate) fn services(&mut self) -> ClusterServices {
        let cluster = self.cluster.as_mut();
        cluster.map_or_else(ClusterServices::none, |cluster| {
            cluster.services.borrow_and_update().known.clone()
        })
    }

    /// What the cluster tells; nothing where there is none.
    pub(crate) fn cluster(&self) -> Option<&OfCluster> {
        self.cluster.as_ref()
    }

    /// The policy that is in force, from what they say and the names of the pools that are in use.
    pub(crate) fn policy(&mut self, used: &BTreeSet<String>) -> Policy {
        let pools = self.pools.as_mut();
        let pools = pools.and_then(|r| r.borrow_and_update().value.clone());
        Policy {
            pools: self.used.in_force(pools, used),
            agent: self
                .agent
                .as_mut()
                .and_then(|r| r.borrow_and_update().value.clone()),
        }
    }

    /// The pool documents, where they are followed.
    pub(crate) fn pools(&self) -> Option<Followed<Pools>> {
        self.pools.as_ref().map(|r| r.borrow().clone())
    }

    /// The ip-masq-agent files, where they are followed.
    pub(crate) fn agent(&self) -> Option<Followed<AgentCidrs>> {
        self.agent.as_ref().map(|r| r.borrow().clone())
    }
}

/// Waits for a change; for ever where there is nothing to follow.
async fn changed<T>(receiver: Option<&mut watch::Receiver<T>>) {
    let ended = match receiver {
        Some(receiver) => receiver.changed().await.is_err(),
        None => true,
    };
    if ended {
        std::future::pending::<()>().await;
    }
}

/// Tells the sweeper of translated flows when policy changes.
pub(crate) struct PolicyWatch {
    nat: nat::Handle,
    settings: MasqueradeSettings,
    told: Option<Arc<Judge>>,
}

impl PolicyWatch {
    pub(crate) fn new(nat: nat::Handle, settings: MasqueradeSettings) -> Self {
        Self {
            nat,
            settings,
            told: None,
        }
    }

    /// Tells it, if what is to be in the maps comes to another policy than before. To be called
    /// before the maps change: from then on the programs look for flows everywhere, so that those
    /// that are translated stay as they are.
    pub(crate) fn announce(&mut self, objects: &BTreeSet<Object>) -> Result<()> {
        self.tell(Judge::new(objects, &self.settings))
    }

    /// The same for what is to be in the maps beside what was announced.
    pub(crate) fn announce_more(&mut self, objects: &BTreeSet<Object>) -> Result<()> {
        // A plan of some endpoints does not know all of what else is to be.
        let is_address =
            |object: &&Object| matches!(object, Object::MapEntry(MapEntry::Address(..)));
        let addresses = objects.iter().filter(is_address);
        match &self.told {
            Some(told) => self.tell(Judge::clone(told).with(addresses)),
            None => self.announce(objects),
        }
    }

    fn tell(&mut self, judge: Judge) -> Result<()> {
        let judge = Arc::new(judge);
        let told = self.told.as_deref();
        if told.is_none_or(|told| judge.differs_from(told)) {
            let policy: Arc<dyn nat::FlowPolicy> = Arc::<Judge>::clone(&judge);
            self.nat
                .policy_changes(policy)
                .context("have translated flows outlive a change of policy")?;
        }
        self.told = Some(judge);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use datapath_common::abi::DestinationClass;
    use datapath_common::masquerade::PoolPolicy;

    use super::*;
    use loader::fixture::address_entry;

    struct Count(Arc<AtomicUsize>);

    impl nat::Switch for Count {
        fn set(&self, lookups: nat::Lookups) -> Result<()> {
            assert_eq!(lookups, nat::Lookups::ALL);
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
        // At the start the programs look anyway.
        for (objects, told) in [
            (&one, 2),
            (&one, 2),
            (&unrelated, 2),
            (&wider, 3),
            (&one, 4),
        ] {
            watch.announce(objects).unwrap();
            assert_eq!(count.load(Ordering::Relaxed), told);
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
        for (object, told) in [
            (other, 2),
            (address(0, masquerade), 2),
            (address(0, masquerade), 2),
            (address(2, masquerade), 3),
            (address(2, skip), 4),
        ] {
            watch.announce_more(&BTreeSet::from([object])).unwrap();
            assert_eq!(count.load(Ordering::Relaxed), told, "{object:?}");
        }
    }
}
