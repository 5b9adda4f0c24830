use std::net::IpAddr;

use ipnet::IpNet;

use super::*;
use crate::constants;
use crate::kernel::fixture::{BRIDGE, ETH0, address, endpoint, host, id, intent, mac, pod_link};
use crate::kernel::{Action, Address, Attachment, Hook, MapEntry, MapKey, Rule, Selector};
use datapath_common::abi::{AddressEntry, EndpointAddress};
use datapath_common::counter::Program;
use datapath_common::masquerade::PoolPolicy;
use ipam::Family;

fn has(desired: &Desired, object: Object) -> bool {
    desired.objects.contains_key(&object)
}

fn host_with_pod() -> Observed {
    let mut observed = host();
    crate::kernel::fixture::plug(&mut observed, pod_link(100, "a"));
    observed
}

fn entry(observed: &Observed, intent: &Intent, of: &str) -> Option<AddressEntry> {
    let key = MapKey::Address(of.parse().unwrap());
    desired(intent, observed)
        .objects
        .keys()
        .find_map(|object| match object {
            Object::MapEntry(entry @ MapEntry::Address(_, value)) if entry.key() == key => {
                Some(*value)
            }
            _ => None,
        })
}

#[test]
fn without_ipv6_in_the_kernel_there_is_none() {
    let mut observed = host_with_pod();
    observed
        .sysctls
        .retain(|sysctl, _| sysctl.family == Family::V4);
    let mut intent = intent();
    intent.endpoints = [endpoint("a", &["10.0.0.20", "2001:db8:0:0:a::5"])]
        .map(|e| (e.id(), e))
        .into();
    let desired = desired(&intent, &observed);
    for object in desired.objects.keys() {
        let v6 = match object {
            Object::Rule(rule) => rule.family == Family::V6,
            Object::Route(route) => route.destination.addr().is_ipv6(),
            Object::Sysctl(sysctl, _) => sysctl.family == Family::V6,
            Object::Neighbour(neighbour) => neighbour.address.is_ipv6(),
            _ => false,
        };
        assert!(!v6, "{object:?}");
    }
    assert_eq!(
        desired.endpoints[&id("a")].readiness,
        Readiness::not_ready("address 2001:db8::a:0:0:5: the host has no IPv6")
    );
}

/// The entry of an address of the endpoint `a`.
fn entry_of_a(pool: PoolPolicy, eni: u8, eni_ifindex: u32) -> AddressEntry {
    AddressEntry::endpoint(EndpointAddress {
        pool,
        via_stack: false,
        eni,
        eni_ifindex,
        ifindex: 100,
        mtu: 9001,
        pod_mac: id("a").pod_mac().0,
        host_mac: id("a").host_mac().0,
        namespace: Some(3),
    })
}

#[test]
fn an_endpoint_whose_eni_is_missing_is_fenced() {
    let mut observed = host_with_pod();
    let mut intent = intent();
    intent.endpoints = [endpoint("a", &["10.0.1.65"])].map(|e| (e.id(), e)).into();
    let expect = |eni_ifindex| entry_of_a(PoolPolicy::Masquerade, 1, eni_ifindex);
    assert_eq!(
        entry(&observed, &intent, "10.0.1.65"),
        Some(expect(ETH0 + 1))
    );
    observed.links.remove(&(ETH0 + 1));
    assert_eq!(entry(&observed, &intent, "10.0.1.65"), Some(expect(0)));
    let desired = desired(&intent, &observed);
    let table = |object: &&Object| match object {
        Object::Route(route) => route.table == 11,
        Object::Rule(rule) => rule.action == Action::Table(11),
        _ => false,
    };
    let fence: Vec<String> = desired
        .objects
        .keys()
        .filter(table)
        .map(|object| object.describe(&observed.links))
        .collect();
    assert_eq!(
        fence,
        [
            "unreachable default metric 9000 table 11",
            "unreachable default metric 9000 table 11 (inet6)",
            "111: from all fwmark 0x2000000/0x3f000000 lookup 11",
            "111: from all fwmark 0x2000000/0x3f000000 lookup 11 (inet6)",
        ]
    );
}

/// An observation shows if an endpoint's packets take the stack. Without one the entry stays
/// unchanged.
#[test]
fn an_endpoint_takes_the_stack_for_what_somebody_has_on_its_device() {
    let mut observed = host_with_pod();
    let mut intent = intent();
    intent.endpoints = [endpoint("a", &["10.0.1.65"])].map(|e| (e.id(), e)).into();
    let key = MapKey::Address("10.0.1.65".parse().unwrap());
    let takes_stack = |observed: &Observed| {
        let entry = entry(observed, &intent, "10.0.1.65").unwrap();
        (
            entry.is_via_stack(),
            MapEntry::Address("10.0.1.65".parse().unwrap(), entry),
        )
    };
    assert!(!takes_stack(&observed).0, "nobody looked");
    observed.via_stack = [(100, Some("a tbf qdisc".to_owned()))].into();
    let (is_via_stack, entry) = takes_stack(&observed);
    assert!(is_via_stack);
    observed.maps.insert(key, entry);
    observed.via_stack.clear();
    assert!(takes_stack(&observed).0, "it stays");
    observed.via_stack = [(100, None)].into();
    assert!(!takes_stack(&observed).0, "the qdisc went");
    observed.via_stack.clear();
    let mut other = host_with_pod();
    std::mem::swap(&mut other.maps, &mut observed.maps);
    let link = other.links.remove(&100).unwrap();
    other.links.insert(
        101,
        Link {
            ifindex: 101,
            ..link
        },
    );
    assert!(!takes_stack(&other).0, "another device");
}

#[test]
fn the_host_wins_an_address_and_the_first_endpoint_the_next() {
    let mut intent = intent();
    let mut observed = host_with_pod();
    let of_host = "10.0.0.20".parse().unwrap();
    intent.settings.host.addresses = [of_host].into();
    assert_eq!(
        desired(&intent, &observed).endpoints[&id("a")].readiness,
        Readiness::not_ready(
            "address 10.0.0.20 is the host's, one of host-addresses in the configuration"
        )
    );
    observed.addresses.insert(address(BRIDGE, "10.0.0.20/32"));
    let desired = desired(&intent, &observed);
    assert_eq!(
        desired.endpoints[&id("a")].readiness,
        Readiness::not_ready("address 10.0.0.20 is the host's, on docker0")
    );
    assert_eq!(
        entry(&observed, &intent, "10.0.0.20"),
        Some(AddressEntry::host())
    );

    // Only a foreign program added the address: the pod keeps it, and the reason shows.
    intent.settings.host.addresses.clear();
    let robbed = super::desired(&intent, &observed);
    assert_eq!(
        robbed.endpoints[&id("a")].readiness,
        Readiness::not_ready("address 10.0.0.20 is the host's, on docker0")
    );
    let kept = entry(&observed, &intent, "10.0.0.20").unwrap();
    assert!(kept.is_endpoint(), "{kept:?}");

    intent.endpoints = [endpoint("a", &["10.0.1.65"]), endpoint("b", &["10.0.1.65"])]
        .map(|e| (e.id(), e))
        .into();
    let holder = *intent.endpoints.keys().next().unwrap();
    let other = *intent.endpoints.keys().nth(1).unwrap();
    let desired = super::desired(&intent, &observed);
    assert!(desired.endpoints[&holder].readiness.is_ready());
    assert_eq!(
        desired.endpoints[&other].readiness,
        Readiness::NotReady {
            reason: format!("address 10.0.1.65 is endpoint {holder}'s")
        }
    );
}

#[test]
fn every_address_of_the_host_is_known_but_link_local_and_loopback_ones() {
    let observed = host();
    let host_entry = |address: &str| entry(&observed, &intent(), address);
    // The last two: about to be on eth1, and out of the settings.
    for address in ["10.0.0.10", "172.17.0.1", "10.0.1.10", "169.254.20.10"] {
        let expected = match address {
            "10.0.0.10" => AddressEntry::translation(0),
            "10.0.1.10" => AddressEntry::translation(1),
            _ => AddressEntry::host(),
        };
        assert_eq!(host_entry(address), Some(expected), "{address}");
    }
    for address in ["127.0.0.1", "::1", "fe80::10"] {
        assert_eq!(host_entry(address), None, "{address}");
    }
}

#[test]
fn an_address_of_the_agents_own_is_the_hosts_and_leaves_by_its_eni() {
    let own: IpAddr = "10.0.1.70".parse().unwrap();
    let mut intent = intent();
    assert_eq!(
        intent.node.owner_of(own).map(|eni| eni.number),
        Some(EniNumber(1))
    );
    intent.settings.host.ingress.insert(own);
    let observed = host();
    let objects = desired(&intent, &observed).objects;
    let net = IpNet::from(own);
    assert!(objects.contains_key(&Object::Address(Address { ifindex: 1, net })));
    let rule = Rule {
        family: Family::V4,
        priority: 112,
        selector: Selector::Source(net),
        action: Action::Table(11),
        protocol: 2,
    };
    assert!(objects.contains_key(&Object::Rule(rule)));
    let expected = Some(AddressEntry::translation(1));
    assert_eq!(entry(&observed, &intent, "10.0.1.70"), expected);
    // An address that is about to be removed has no owner. Until then its entry marks it as ours.
    let mut observed = observed;
    observed.addresses.insert(Address { ifindex: 1, net });
    let there = MapEntry::Address(own, AddressEntry::translation(1));
    observed.maps.insert(there.key(), there);
    assert_eq!(entry(&observed, &intent, "10.0.1.70"), expected);
    intent.settings.host.ingress.clear();
    assert_eq!(entry(&observed, &intent, "10.0.1.70"), None);
}

#[test]
fn pod_routes_carry_the_nodes_address_where_the_host_has_it() {
    let source = |observed: &Observed| {
        let objects = desired(&intent(), observed).objects;
        let pod_route = objects.into_keys().find_map(|object| match object {
            Object::Route(r) if r.destination == "10.0.0.20/32".parse().unwrap() => Some(r),
            _ => None,
        });
        pod_route.unwrap().source
    };
    let mut observed = host_with_pod();
    assert_eq!(source(&observed), Some(IpAddr::from([10, 0, 0, 10])));
    observed.addresses.retain(|a| a.ifindex != ETH0);
    assert_eq!(source(&observed), None);
}

#[test]
fn an_endpoints_device_is_made_when_missing_or_unfinished_and_never_taken_over() {
    let wants = |observed: &Observed| desired(&intent(), observed);
    let hook = Object::Attachment(Hook {
        ifindex: 100,
        program: Program::FromEndpoint,
    });
    let device = Object::Device(id("a"));
    let missing = wants(&host());
    assert!(has(&missing, device) && !has(&missing, hook));

    let mut observed = host_with_pod();
    assert!(has(&wants(&observed), hook));
    observed.links.get_mut(&100).unwrap().up = false;
    let down = wants(&observed);
    assert!(has(&down, hook) && has(&down, Object::Up(100)));
    observed.links.get_mut(&100).unwrap().group = 0;
    let unfinished = wants(&observed);
    assert!(has(&unfinished, device) && !has(&unfinished, hook));

    observed.links.get_mut(&100).unwrap().mac = Some(mac(9));
    let foreign = wants(&observed);
    assert!(!has(&foreign, device));
    let reason = foreign.endpoints[&id("a")]
        .readiness
        .reason()
        .unwrap()
        .to_owned();
    assert!(reason.contains("is not ours"), "{reason}");
}

#[test]
fn an_address_that_lost_its_eni_keeps_its_number_while_nobody_else_has_it() {
    let mut observed = host_with_pod();
    let mut intent = intent();
    intent.endpoints = [endpoint("a", &["10.0.1.65"])].map(|e| (e.id(), e)).into();
    let before = entry(&observed, &intent, "10.0.1.65").unwrap();
    let address: IpAddr = "10.0.1.65".parse().unwrap();
    observed
        .maps
        .insert(MapKey::Address(address), MapEntry::Address(address, before));
    observed.attachments.insert(
        Hook {
            ifindex: 100,
            program: Program::FromEndpoint,
        },
        Attachment::Current,
    );

    let mut gone = intent.clone();
    gone.node.enis.remove(&EniNumber(1));
    let kept = entry(&observed, &gone, "10.0.1.65").unwrap();
    assert_eq!((kept.eni(), kept.eni_ifindex()), (1, 0));

    let mut reused = intent;
    reused
        .node
        .enis
        .get_mut(&EniNumber(1))
        .unwrap()
        .blocks
        .clear();
    assert_eq!(entry(&observed, &reused, "10.0.1.65"), None);
    let reason = format!("no ENI of the node document owns {address}");
    let desired = desired(&reused, &observed);
    assert_eq!(
        desired.endpoints[&id("a")].readiness,
        Readiness::NotReady { reason }
    );
    let route = |object: &Object| matches!(object, Object::Route(r) if r.table == constants::TABLE_PODS && r.destination.addr() == address);
    assert!(
        desired.objects.keys().any(route),
        "the host still reaches it"
    );
}

#[test]
fn an_endpoint_on_an_excluded_eni_names_the_eni_and_the_rule() {
    let mut intent = intent();
    intent.endpoints = [endpoint("a", &["10.0.1.65"])].map(|e| (e.id(), e)).into();
    let eni = intent.node.enis.get_mut(&EniNumber(1)).unwrap();
    eni.excluded = Some("its number 1 is below spec.eni.first-interface-index 2".into());
    let endpoints = desired(&intent, &host_with_pod()).endpoints;
    assert_eq!(
        endpoints[&id("a")].readiness.reason(),
        Some(
            "ENI 1 (eni-1), which owns 10.0.1.65, is excluded: its number 1 is below \
             spec.eni.first-interface-index 2"
        )
    );
}

#[test]
fn an_endpoint_of_a_plain_pool_leaves_by_the_primary_and_never_untranslated() {
    let observed = host_with_pod();
    let mut intent = intent();
    let block = "10.99.0.0/28".parse().unwrap();
    intent.node.pools.insert(block, "mars".to_owned());
    intent.endpoints = [endpoint("a", &["10.99.0.3"])].map(|e| (e.id(), e)).into();
    let of = |pool, eni_ifindex| entry_of_a(pool, 0, eni_ifindex);
    let desired = desired(&intent, &observed);
    assert!(desired.endpoints[&id("a")].readiness.is_ready());
    let class = datapath_common::abi::DestinationClass::BLOCK;
    assert!(has(
        &desired,
        Object::MapEntry(MapEntry::Destination(block, class))
    ));
    let unreachable = |object: &&Object| match object {
        Object::Route(route) => route.destination == block && route.table == constants::TABLE_PODS,
        _ => false,
    };
    assert_eq!(desired.objects.keys().filter(unreachable).count(), 1);
    let entry_of = |intent: &Intent| entry(&observed, intent, "10.99.0.3");
    assert_eq!(entry_of(&intent), Some(of(PoolPolicy::Always, ETH0)));
    // Only the ENI's number is known if the document does not list the primary.
    intent.node.enis.remove(&EniNumber::PRIMARY);
    intent.node.addresses.internal = vec!["10.0.0.10".parse().unwrap()];
    assert_eq!(entry_of(&intent), Some(of(PoolPolicy::Always, ETH0)));

    intent.settings.plain_is_native = true;
    assert_eq!(entry_of(&intent), Some(of(PoolPolicy::Masquerade, ETH0)));
    intent.settings.masquerade.only_default_pool = true;
    assert_eq!(entry_of(&intent), Some(of(PoolPolicy::Skip, ETH0)));

    // An address that was an ENI's gets no other entry.
    intent.settings.default_pool = "mars".to_owned();
    assert_eq!(entry_of(&intent), None);
}

/// The VPC's addresses belong to ENIs of this node or another. That also holds while the removed
/// block of an ENI is still listed, or a whole VPC by mistake.
#[test]
fn what_is_the_vpcs_is_no_plain_pools() {
    let mut intent = intent();
    for block in ["10.0.0.0/16", "10.0.7.16/28", "0.0.0.0/1"] {
        let pools = &mut intent.node.pools;
        pools.insert(block.parse().unwrap(), "red".to_owned());
    }
    assert_eq!(intent.plain_blocks().count(), 0);
    intent.endpoints = [endpoint("a", &["10.0.7.17"])].map(|e| (e.id(), e)).into();
    assert_eq!(entry(&host_with_pod(), &intent, "10.0.7.17"), None);
}
