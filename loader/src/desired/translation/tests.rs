//! Translation addresses and egress ENIs.

use std::collections::BTreeSet;

use datapath_common::config::PortSlice;
use datapath_common::masquerade::MetadataPolicy;
use datapath_common::ports::Ports;

use super::*;
use crate::desired::{Desired, desired};
use crate::kernel::Object;
use crate::kernel::fixture::{ETH0, address, endpoint, host, intent};

fn entry(desired: &Desired, number: u8) -> Option<EniEntry> {
    desired.objects.keys().find_map(|object| match object {
        Object::MapEntry(MapEntry::Eni(eni, entry)) if eni.0 == number => Some(*entry),
        _ => None,
    })
}

fn snat(intent: &Intent, observed: &Observed, number: u8, family: Family) -> Option<String> {
    let entry = entry(&desired(intent, observed), number)?;
    let of_family = match family {
        Family::V4 => entry.v4().snat,
        Family::V6 => entry.v6().snat,
    };
    (!of_family.is_unspecified()).then(|| IpAddr::from(of_family).to_string())
}

fn externals(intent: &Intent, observed: &Observed) -> [[u8; 2]; 3] {
    let desired = desired(intent, observed);
    [0, 1, 2].map(|number| {
        let entry = entry(&desired, number).unwrap();
        [entry.v4().external, entry.v6().external]
    })
}

/// Every ENI's device has a global IPv6 address.
fn with_v6() -> Observed {
    let mut observed = host();
    for number in 0..3 {
        let net = format!("2001:db8:0:{number}::10/64");
        let on = address(ETH0 + number, &net);
        observed.addresses.insert(on);
    }
    observed
}

#[test]
fn addresses_come_from_the_document_and_from_the_devices() {
    let (v4, v6) = (Family::V4, Family::V6);
    let mut intent = intent();
    let observed = with_v6();
    let at = |intent: &Intent, number, family| snat(intent, &observed, number, family);
    assert_eq!(at(&intent, 0, v4).as_deref(), Some("10.0.0.10"));
    assert_eq!(at(&intent, 1, v4).as_deref(), Some("10.0.1.10"));
    assert_eq!(at(&intent, 1, v6).as_deref(), Some("2001:db8:0:1::10"));
    assert_eq!(snat(&intent, &host(), 1, v6), None, "link-local only");
    intent
        .node
        .enis
        .get_mut(&EniNumber(1))
        .unwrap()
        .use_primary_address = true;
    assert_eq!(at(&intent, 1, v4), None);
    assert_eq!(at(&intent, 1, v6).as_deref(), Some("2001:db8:0:1::10"));
    let view = desired(&intent, &observed).masquerade.enis;
    let eni = &view[1];
    assert_eq!(eni.ipv4.external, EniNumber::PRIMARY);
    assert_eq!(
        eni.ipv4.why,
        "use-primary-address: its own address is a pod's to have: by the primary"
    );
}

#[test]
fn a_pods_address_on_a_device_is_none_to_translate_to() {
    let mut observed = host();
    let block = address(ETH0 + 1, "2001:db8:0:1:a::99/128");
    observed.addresses.insert(block);
    assert_eq!(snat(&intent(), &observed, 1, Family::V6), None);
}

#[test]
fn the_nodes_address_goes_first_and_what_is_in_use_stays() {
    let v6 = Family::V6;
    let mut intent = intent();
    let mut observed = with_v6();
    let more = [
        address(ETH0, "2001:db8:0:0::5/64"),
        address(ETH0 + 1, "2001:db8:0:1::5/64"),
    ];
    observed.addresses.extend(more);
    let at = |intent: &Intent, observed: &Observed, n| snat(intent, observed, n, v6).unwrap();
    assert_eq!(at(&intent, &observed, 1), "2001:db8:0:1::5");
    let used: IpAddr = "2001:db8:0:1::10".parse().unwrap();
    let addresses = EniAddresses::new(Addr::UNSPECIFIED, used.into(), 1);
    let entry = EniEntry::new(3, 9001, EniAddresses::NONE, addresses);
    let entry = MapEntry::Eni(EniNumber(1), entry);
    observed.maps.insert(entry.key(), entry);
    assert_eq!(at(&intent, &observed, 1), "2001:db8:0:1::10");
    assert_eq!(at(&intent, &observed, 0), "2001:db8::5");
    intent
        .node
        .addresses
        .internal
        .push("2001:db8::10".parse().unwrap());
    assert_eq!(at(&intent, &observed, 0), "2001:db8::10");
}

#[test]
fn the_policy_chooses_the_way_out() {
    use ExternalPolicy::{Auto, OwnEni, PrimaryEni};
    let observed = with_v6();
    let chosen = |policy, public: &[u8]| {
        let mut intent = intent();
        intent.settings.masquerade.external = policy;
        for number in public {
            let eni = intent.node.enis.get_mut(&EniNumber(*number)).unwrap();
            eni.public_address = Some([203, 0, 113, 1].into());
        }
        externals(&intent, &observed)
    };
    let own = [[0, 0], [1, 1], [2, 2]];
    for public in [&[][..], &[0], &[0, 1, 2]] {
        assert_eq!(chosen(OwnEni, public), own);
        assert_eq!(chosen(PrimaryEni, public), [[0, 0]; 3]);
    }
    assert_eq!(chosen(Auto, &[]), own);
    assert_eq!(chosen(Auto, &[0]), [[0, 0], [0, 1], [0, 2]]);
    assert_eq!(chosen(Auto, &[0, 1, 2]), own);
    assert_eq!(chosen(Auto, &[1]), own);
    assert_eq!(chosen(Auto, &[0, 1]), [[0, 0], [1, 1], [0, 2]]);
    // Without an IPv6 address of its own, an ENI's pods are translated to the primary's. With
    // `OwnEni` they are not: the ENI has none, and the datapath drops.
    assert_eq!(externals(&intent(), &host()), [[0, 0], [1, 0], [2, 0]]);
    let mut intent = intent();
    intent.settings.masquerade.external = OwnEni;
    assert_eq!(externals(&intent, &host()), own);
    let eni = &desired(&intent, &host()).masquerade.enis[1];
    assert_eq!(eni.ipv6.address, None);
    assert!(eni.ipv6.why.ends_with(": dropped"), "{}", eni.ipv6.why);
    let eni = intent.node.enis.get_mut(&EniNumber(1)).unwrap();
    eni.use_primary_address = true;
    let given = externals(&intent, &host());
    assert_eq!(given, [[0, 0], [0, 1], [2, 2]], "as the document asks for");
}

#[test]
fn a_primary_that_no_pod_uses_is_a_way_out_all_the_same() {
    let mut intent = intent();
    intent.settings.masquerade.metadata = MetadataPolicy::Primary;
    intent.node.addresses.external = vec!["203.0.113.9".parse().unwrap()];
    let mut observed = with_v6();
    let excluded = {
        let mut intent = intent.clone();
        let eni = intent.node.enis.get_mut(&EniNumber::PRIMARY).unwrap();
        eni.excluded = Some("first-interface-index".to_owned());
        desired(&intent, &observed)
    };
    intent.node.enis.remove(&EniNumber::PRIMARY);
    intent.endpoints.clear();
    let unlisted = desired(&intent, &observed);
    for desired in [&excluded, &unlisted] {
        let entry = entry(desired, 0).unwrap();
        assert_eq!(entry.ifindex(), ETH0);
        assert_eq!(
            IpAddr::from(entry.v4().gateway),
            IpAddr::from([10, 0, 0, 1])
        );
        assert_eq!(IpAddr::from(entry.v4().snat), IpAddr::from([10, 0, 0, 10]));
        assert_eq!(IpAddr::from(entry.v6().gateway), constants::GATEWAY_V6);
        assert_eq!(IpAddr::from(entry.v6().snat).to_string(), "2001:db8::10");
    }
    // Its public address is the node's external one.
    assert_eq!(entry(&unlisted, 1).unwrap().v4().external, 0);
    assert_eq!(entry(&excluded, 1).unwrap().v4().external, 1);
    // A single address has no subnet, and so no gateway.
    observed.addresses.remove(&address(ETH0, "10.0.0.10/24"));
    observed.addresses.insert(address(ETH0, "10.0.0.10/32"));
    let entry = entry(&desired(&intent, &observed), 0).unwrap();
    assert!(entry.v4().gateway.is_unspecified() && entry.v4().snat.is_unspecified());
}

/// Of each ENI and family, the most ports of a destination's reserve that an endpoint may have.
fn shares(intent: &Intent, observed: &Observed) -> [[u16; 2]; 3] {
    let desired = desired(intent, observed);
    [0, 1, 2].map(|number| {
        let entry = entry(&desired, number).unwrap();
        [entry.v4().share, entry.v6().share]
    })
}

#[test]
fn endpoints_share_the_reserves_of_the_eni_by_which_they_leave() {
    let mut intent = intent();
    let observed = with_v6();
    intent.settings.ports = Ports::DEFAULT.to_words().map(PortSlice::from_word);
    assert_eq!(shares(&intent, &observed), [[24; 2]; 3]);
    let block = "10.0.1.0/24".parse().unwrap();
    intent.node.enis.get_mut(&EniNumber(1)).unwrap().blocks =
        BTreeSet::from([block]).into_iter().collect();
    for last in 0..200 {
        let pod = endpoint(&format!("many-{last}"), &[&format!("10.0.1.{last}")]);
        intent.endpoints.insert(pod.id(), pod);
    }
    assert_eq!(shares(&intent, &observed), [[24; 2], [12, 24], [24; 2]]);
    intent.settings.masquerade.external = ExternalPolicy::PrimaryEni;
    assert_eq!(shares(&intent, &observed), [[12, 24], [12, 24], [24; 2]]);
}
