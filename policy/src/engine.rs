//! The policy on flows, by the entries that the maps should have.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::ids::EniNumber;
use datapath_common::abi::DestinationClass;
use datapath_common::masquerade::{
    Exit, FlowRole, KnownFlow, PolicyInput, PolicyOutcome, PoolPolicy, rule,
};
use flows::FlowPolicy;
use ipam::Family;
use ipnet::IpNet;

use crate::longest;
use loader::intent::masquerade::MasqueradeSettings;
use loader::kernel::{MapEntry, Object};

/// The policy on packets from a pod to a remote. It is built from the desired entries of the maps,
/// so it is ahead of them while they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEngine {
    rules: Rules,
    /// The owner ENI of each endpoint's address.
    owners: BTreeMap<IpAddr, u8>,
}

/// The inputs of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rules {
    settings: MasqueradeSettings,
    destinations: BTreeMap<IpNet, DestinationClass>,
    /// The policies of pods' addresses by their pools, where they have one.
    pools: BTreeMap<IpAddr, PoolPolicy>,
    /// By which ENI what leaves the VPC does from each, over IPv4 and over IPv6.
    exits: BTreeMap<u8, (u8, u8)>,
}

impl PolicyEngine {
    /// The engine of a node that is to have these objects.
    pub fn new<'a>(
        objects: impl IntoIterator<Item = &'a Object>,
        settings: &MasqueradeSettings,
    ) -> Self {
        let rules = Rules {
            settings: settings.clone(),
            destinations: BTreeMap::new(),
            pools: BTreeMap::new(),
            exits: BTreeMap::new(),
        };
        let owners = BTreeMap::new();
        Self { rules, owners }.with(objects)
    }

    /// The engine of a node that is to have these objects as well.
    #[must_use]
    pub fn with<'a>(mut self, objects: impl IntoIterator<Item = &'a Object>) -> Self {
        let rules = &mut self.rules;
        for object in objects {
            match object {
                Object::MapEntry(MapEntry::Destination(net, class)) => {
                    rules.destinations.insert(*net, *class);
                }
                Object::MapEntry(MapEntry::Address(address, entry)) => {
                    if entry.is_endpoint() {
                        self.owners.insert(*address, entry.eni());
                    }
                    match entry.pool() {
                        PoolPolicy::Masquerade => {}
                        other => drop(rules.pools.insert(*address, other)),
                    }
                }
                Object::MapEntry(MapEntry::Eni(number, entry)) => {
                    let exits = (entry.v4().external, entry.v6().external);
                    rules.exits.insert(number.0, exits);
                }
                _ => {}
            }
        }
        self
    }
}

impl PolicyEngine {
    /// True if flows made under the other policy may differ from what this one demands: by other
    /// rules, or because the address of an endpoint has another owner ENI.
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> bool {
        let mut owners = self.owners.iter();
        let is_moved = |(address, owner)| other.owners.get(address).is_some_and(|was| was != owner);
        self.rules != other.rules || owners.any(is_moved)
    }

    fn rule(&self, pod: IpAddr, remote: IpAddr) -> PolicyOutcome {
        let rules = &self.rules;
        let class = longest(remote, |net| rules.destinations.get(&net).copied());
        let input = PolicyInput {
            flow: KnownFlow::None,
            destination: class.map_or(DestinationClass::NONE, |(_, class)| class),
            pool: rules.pools.get(&pod).copied().unwrap_or_default(),
            is_on: rules.settings.is_on(Family::of(remote)),
            metadata: rules.settings.metadata,
            role: FlowRole::New,
        };
        rule(&input)
    }
}

impl FlowPolicy for PolicyEngine {
    /// Also where packets would be dropped.
    fn is_exempt(&self, pod: IpAddr, remote: IpAddr) -> bool {
        match self.rule(pod, remote) {
            PolicyOutcome::Untranslated(_) | PolicyOutcome::Drop(_) => true,
            PolicyOutcome::Translated(_) => false,
        }
    }

    fn exit(&self, pod: IpAddr, remote: IpAddr, owner: u8) -> u8 {
        match self.rule(pod, remote) {
            PolicyOutcome::Translated(Exit::Primary) => EniNumber::PRIMARY.0,
            PolicyOutcome::Translated(Exit::External)
            | PolicyOutcome::Untranslated(_)
            | PolicyOutcome::Drop(_) => {
                let exits = self.rules.exits.get(&owner);
                exits.map_or(owner, |(v4, v6)| match Family::of(remote) {
                    Family::V4 => *v4,
                    Family::V6 => *v6,
                })
            }
        }
    }

    fn hides_pods(&self) -> bool {
        self.rules.pools.values().any(|pool| pool.is_always())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::types::ExternalPolicy;
    use loader::intent::Intent;
    use loader::kernel::Observed;
    use loader::kernel::fixture::{address_entry, host, intent, plug, pod_link};
    use loader::plan::plan;

    fn engine(intent: &Intent, observed: &Observed) -> PolicyEngine {
        let objects = plan(intent, observed).objects;
        PolicyEngine::new(&objects, &intent.settings.masquerade)
    }

    #[test]
    fn a_plain_pools_packets_are_exempt_nowhere() {
        let mut observed = host();
        plug(&mut observed, pod_link(100, "a"));
        let mut intent = intent();
        intent.settings.masquerade.ipv4 = true;
        let engine = |intent: &Intent| engine(intent, &observed);
        assert!(!engine(&intent).hides_pods());
        let (block, pod) = (
            "10.99.0.0/28".parse().unwrap(),
            "10.99.0.3".parse().unwrap(),
        );
        intent.node.pools.insert(block, "mars".to_owned());
        let endpoint = loader::kernel::fixture::endpoint("a", &["10.99.0.3"]);
        intent.endpoints = [(endpoint.id(), endpoint)].into();
        let engine = engine(&intent);
        assert!(engine.hides_pods());
        assert!(!engine.is_exempt(pod, "10.0.9.9".parse().unwrap()));
    }

    #[test]
    fn what_is_exempt_is_told() {
        let mut observed = host();
        for (index, name) in (100..).zip(["a", "b", "c"]) {
            plug(&mut observed, pod_link(index, name));
        }
        let mut intent = intent();
        intent.settings.masquerade.ipv4 = true;
        let engine = |intent: &Intent| engine(intent, &observed);
        let of = |engine: &PolicyEngine, pod: &str, remote: &str| {
            engine.is_exempt(pod.parse().unwrap(), remote.parse().unwrap())
        };
        let before = engine(&intent);
        assert!(of(&before, "10.0.1.65", "10.0.9.9"));
        assert!(!of(&before, "10.0.1.65", "1.1.1.1"));
        assert!(!of(&before, "10.0.1.65", "169.254.169.254"));
        assert!(of(&before, "2001:db8:0:1:a::65", "2001:db8:ffff::1"), "off");
        assert!(of(&before, "10.0.0.10", "10.0.9.9"), "the host's own flow");
        assert_eq!(engine(&intent), before);

        let red = "10.0.1.64/28".parse().unwrap();
        intent.node.pools.insert(red, "red".to_owned());
        intent.settings.masquerade.only_default_pool = true;
        let after = engine(&intent);
        assert_ne!(after, before);
        assert!(of(&after, "10.0.1.65", "1.1.1.1"));
        assert!(!of(&after, "10.0.2.66", "1.1.1.1"));
    }

    #[test]
    fn an_address_that_becomes_another_enis_differs_and_one_that_comes_or_goes_does_not() {
        let entry = |eni| address_entry(eni, PoolPolicy::Masquerade);
        let engine = |eni: Option<u8>| {
            let address = "10.0.1.65".parse().unwrap();
            let object = |eni| Object::MapEntry(MapEntry::Address(address, entry(eni)));
            let objects: Vec<_> = eni.map(object).into_iter().collect();
            PolicyEngine::new(&objects, &MasqueradeSettings::default())
        };
        for (before, after, differs) in [
            (Some(0), Some(2), true),
            (Some(0), Some(0), false),
            (Some(0), None, false),
            (None, Some(0), false),
        ] {
            let is_it = engine(after).differs_from(&engine(before));
            assert_eq!(is_it, differs, "{before:?} to {after:?}");
        }
    }

    #[test]
    fn where_a_flow_is_looked_for_first_is_told() {
        let mut intent = intent();
        intent.settings.masquerade.ipv4 = true;
        let engine = |intent: &Intent| engine(intent, &host());
        let of = |engine: &PolicyEngine, remote: &str| {
            engine.exit("10.0.1.65".parse().unwrap(), remote.parse().unwrap(), 1)
        };
        intent.settings.masquerade.external = ExternalPolicy::PrimaryEni;
        let by_primary = engine(&intent);
        assert_eq!(of(&by_primary, "1.1.1.1"), 0);
        intent.settings.masquerade.external = ExternalPolicy::OwnEni;
        let by_owner = engine(&intent);
        assert_ne!(by_owner, by_primary);
        for (remote, eni) in [("1.1.1.1", 1), ("10.0.9.9", 1), ("169.254.169.254", 0)] {
            assert_eq!(of(&by_owner, remote), eni, "{remote}");
        }
    }
}
