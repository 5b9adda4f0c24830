//! Removals before any addition: routes that would misroute packets.
//!
//! A pod's packet names its ENI by number. The datapath looks up the device in `ENIS`, the stack in
//! the number's table. So a number must not lead to another device while an endpoint's entry still
//! uses it for the old one. Routes to another device are removed first, and the fence stops packets
//! until the new ones are there. The next plan, which finds the entries right, adds the routes to
//! the new device.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::EniNumber;

use crate::constants;
use crate::desired::Desired;
use crate::kernel::{MapEntry, NextHop, Object, ObjectKey, Observed, Scope};
use crate::observation::ownership::{Owned, table_number};

/// The removals before any addition.
///
/// Beside numbers that change hands, this is a skip rule of another mask: programs of two masks
/// run while they are replaced, and the packets of one would skip the ENI rules by the other's.
pub(super) fn removed_first<'o>(
    owned: &'o BTreeSet<Owned>,
    missing: &[(Object, Scope)],
    unexpected: &[&'o Owned],
) -> Vec<&'o Owned> {
    let wanted: BTreeMap<ObjectKey, u32> = missing
        .iter()
        .filter_map(|(object, _)| Some((object.key(), target(object)?.1)))
        .collect();
    let leads_astray = |owned: &&Owned| {
        let object = owned.object();
        target(&object).is_some_and(|(_, ifindex)| {
            wanted
                .get(&object.key())
                .is_some_and(|other| *other != ifindex)
        })
    };
    let skips = unexpected.iter().copied().filter(
        |owned| matches!(owned.object(), Object::Rule(rule) if rule.priority == constants::RULE_SKIP),
    );
    owned.iter().filter(leads_astray).chain(skips).collect()
}

/// The missing objects that have to wait for the next plan.
pub(super) fn deferred(
    desired: &Desired,
    missing: &[(Object, Scope)],
    first: &[&Owned],
    observed: &Observed,
) -> BTreeSet<Object> {
    let mut numbers = misnamed_numbers(desired, observed);
    let gone = first.iter().filter_map(|owned| target(&owned.object()));
    numbers.extend(gone.map(|(number, _)| number));
    missing
        .iter()
        .map(|(object, _)| *object)
        .filter(|object| target(object).is_some_and(|(number, _)| numbers.contains(&number)))
        .collect()
}

/// The numbers by which entries of endpoints name an ENI that is not, or no longer, theirs.
fn misnamed_numbers(desired: &Desired, observed: &Observed) -> BTreeSet<EniNumber> {
    let right: BTreeSet<_> = desired.objects.keys().filter_map(named_number).collect();
    let there = observed.maps.values();
    there
        .filter_map(|entry| named_number(&Object::MapEntry(*entry)))
        .filter(|named| !right.contains(named))
        .map(|(_, number)| number)
        .collect()
}

/// The number by which an endpoint's entry names its ENI.
fn named_number(object: &Object) -> Option<(IpAddr, EniNumber)> {
    match object {
        Object::MapEntry(MapEntry::Address(address, entry)) if entry.is_endpoint() => {
            Some((*address, EniNumber(entry.eni())))
        }
        _ => None,
    }
}

/// Where an object leads the packets of an ENI's number: the number, and the device's index.
fn target(object: &Object) -> Option<(EniNumber, u32)> {
    match object {
        Object::MapEntry(MapEntry::Eni(number, entry)) => Some((*number, entry.ifindex())),
        Object::Route(route) => match route.next_hop {
            NextHop::Device(ifindex) | NextHop::Gateway(_, ifindex) => {
                Some((table_number(route.table)?, ifindex))
            }
            NextHop::Unreachable | NextHop::Throw => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datapath_common::abi::{AddressEntry, EndpointAddress};
    use datapath_common::masquerade::PoolPolicy;

    use crate::intent::Intent;
    use crate::kernel::fixture::{ETH0, host, intent, mac};
    use crate::kernel::{MapEntry, MapKey, NextHop, Object, Observed, Route, StepKind};
    use crate::plan::{Plan, plan};
    use api::ids::EniNumber;

    /// A node as `intent` wants it, as far as numbers are concerned.
    fn settled(intent: &Intent) -> Observed {
        let mut observed = host();
        for object in plan(intent, &observed).objects {
            match object {
                Object::Route(route) => drop(observed.routes.insert(route)),
                Object::Rule(rule) => drop(observed.rules.insert(rule)),
                Object::MapEntry(entry) => drop(observed.maps.insert(entry.key(), entry)),
                _ => {}
            }
        }
        observed
    }

    /// ENIs 1 and 2 with each other's numbers.
    fn exchanged() -> Intent {
        let mut intent = intent();
        for (number, from) in [(1, 2), (2, 1)] {
            let mut eni = crate::kernel::fixture::eni(from);
            eni.number = EniNumber(number);
            intent.node.enis.insert(EniNumber(number), eni);
        }
        intent
    }

    fn targets_added(plan: &Plan, of: u8) -> usize {
        let is_added = |object| super::target(object).is_some_and(|(number, _)| number.0 == of);
        let added = plan.steps.iter().filter(|p| p.adds);
        added.filter(|p| is_added(&p.object)).count()
    }

    #[test]
    fn a_number_leads_nowhere_while_it_changes_hands() {
        let plan = plan(&exchanged(), &settled(&intent()));
        assert_eq!((targets_added(&plan, 1), targets_added(&plan, 2)), (0, 0));
        let added = plan.steps.iter().position(|p| p.adds).unwrap();
        for number in [1, 2] {
            let goes = |p: &crate::plan::Planned| match p.step.kind {
                StepKind::DeleteMapEntry(key) => key == MapKey::Eni(EniNumber(number)),
                _ => false,
            };
            assert!(plan.steps.iter().position(goes).unwrap() < added);
            let default = |p: &crate::plan::Planned| {
                matches!(
                    p.step.kind,
                    StepKind::DeleteRoute(Route { table, next_hop: NextHop::Gateway(..), .. })
                        if table == 10 + u32::from(number)
                )
            };
            assert!(plan.steps.iter().position(default).unwrap() < added);
        }
    }

    #[test]
    fn a_number_leads_to_its_new_device_after_the_entries_that_name_it_are_right() {
        let mut intent = intent();
        intent.node.enis.remove(&EniNumber(1));
        let mut observed = settled(&intent);
        let mut eni = crate::kernel::fixture::eni(1);
        eni.mac = mac(1);
        intent.node.enis.insert(EniNumber(1), eni);
        assert_ne!(targets_added(&plan(&intent, &observed), 1), 0);

        let entry = AddressEntry::endpoint(EndpointAddress {
            pool: PoolPolicy::Masquerade,
            via_stack: false,
            eni: 1,
            eni_ifindex: 0,
            ifindex: ETH0 + 100,
            mtu: 9001,
            pod_mac: [0; 6],
            host_mac: [0; 6],
            namespace: None,
        });
        let entry = MapEntry::Address("10.0.9.9".parse().unwrap(), entry);
        observed.maps.insert(entry.key(), entry);
        assert_eq!(targets_added(&plan(&intent, &observed), 1), 0);
    }
}
