use super::*;
use crate::kernel::fixture::{BRIDGE, ETH0, address, host, id, mac, pod_link};
use crate::kernel::{MapKey, Neighbour};
use datapath_common::abi::AddressEntry;

fn rule(priority: u32, selector: Selector, action: Action) -> Rule {
    Rule {
        family: Family::V4,
        priority,
        selector,
        action,
        protocol: 3,
    }
}

fn mark(value: u32, mask: u32) -> Selector {
    Selector::Mark { value, mask }
}

fn from(net: &str) -> Selector {
    Selector::Source(net.parse().unwrap())
}

fn route(table: u32, destination: &str, next_hop: NextHop) -> Route {
    let destination: IpNet = destination.parse().unwrap();
    Route {
        table,
        destination,
        metric: default_metric(Family::of(destination.addr())),
        next_hop,
        source: None,
        protocol: 2,
    }
}

fn via(gateway: &str) -> NextHop {
    NextHop::Gateway(gateway.parse().unwrap(), ETH0 + 1)
}

fn fence(table: u32) -> Route {
    Route {
        metric: constants::METRIC_UNREACHABLE,
        ..route(table, "0.0.0.0/0", NextHop::Unreachable)
    }
}

/// A host with the device of pod a.
fn host_with_pod() -> Observed {
    let mut observed = host();
    observed.links.insert(100, pod_link(100, "a"));
    observed
}

fn is_ours(observed: &Observed, object: Object) -> Option<Scope> {
    recognise(observed, 2)
        .into_iter()
        .find(|owned| owned.object() == object)
        .map(|owned| owned.scope())
}

#[test]
fn rules_by_their_exact_shape() {
    let eni = |number| Some(Scope::Eni(EniNumber(number)));
    let node = Some(Scope::Node);
    for (rule, scope) in [
        (rule(20, Selector::All, Action::Table(220)), node),
        (rule(20, Selector::Foreign, Action::Table(220)), None),
        (rule(20, Selector::All, Action::Table(254)), None),
        (rule(21, Selector::All, Action::Table(220)), None),
        (rule(110, mark(0, 0x3f00_0000), Action::Goto(112)), node),
        // Another setting's mask.
        (rule(110, mark(0, 0x003f_0000), Action::Goto(112)), node),
        (rule(110, mark(0, 0x3f00_0000), Action::Goto(113)), None),
        (rule(110, mark(0, 0x80), Action::Goto(112)), None),
        (rule(110, mark(1, 0x3f00_0000), Action::Goto(112)), None),
        (
            rule(111, mark(0x0200_0000, 0x3f00_0000), Action::Table(11)),
            eni(1),
        ),
        (
            rule(111, mark(0x0002_0000, 0x003f_0000), Action::Table(11)),
            eni(1),
        ),
        // Value and table do not agree.
        (
            rule(111, mark(0x0200_0000, 0x3f00_0000), Action::Table(12)),
            None,
        ),
        // No layout has this field: there is no room for the flags above it, or a gap in it.
        (
            rule(111, mark(0x2000_0000, 0xf000_0000), Action::Table(11)),
            None,
        ),
        (
            rule(111, mark(0x0200_0000, 0x3d00_0000), Action::Table(11)),
            None,
        ),
        // Cilium's.
        (rule(111, from("10.0.1.65/32"), Action::Table(11)), None),
        (rule(112, Selector::All, Action::Nop), node),
        (rule(112, Selector::All, Action::Table(11)), None),
        (rule(112, from("10.0.1.10/32"), Action::Table(11)), eni(1)),
        (rule(112, from("10.0.1.0/24"), Action::Table(11)), None),
        (rule(112, from("10.0.1.10/32"), Action::Table(9)), None),
        // The primary has no such rule.
        (rule(112, from("10.0.0.10/32"), Action::Table(10)), None),
    ] {
        let mut observed = host();
        observed.rules.insert(rule);
        assert_eq!(is_ours(&observed, Object::Rule(rule)), scope, "{rule:?}");
    }
}

#[test]
fn routes_of_an_eni_table_only_where_the_table_is_ours() {
    let eni = Some(Scope::Eni(EniNumber(1)));
    let with_metric = |metric| Route {
        metric,
        ..route(11, "0.0.0.0/0", via("10.0.1.1"))
    };
    let on_link = route(11, "10.0.1.1/32", NextHop::Device(ETH0 + 1));
    for (route, scope) in [
        (route(11, "0.0.0.0/0", via("10.0.1.1")), eni),
        (route(11, "::/0", via("fe80:ec2::1")), eni),
        (on_link, eni),
        (route(11, "fe80:ec2::1/128", NextHop::Device(3)), eni),
        (with_metric(100), None),
        (
            Route {
                protocol: 4,
                ..on_link
            },
            None,
        ),
        (route(11, "::/0", via("fe80::1")), None),
        (route(11, "2001:db8::1/128", NextHop::Device(3)), None),
        (route(11, "10.9.0.0/16", via("10.0.1.1")), None),
        (route(11, "10.9.0.0/16", NextHop::Unreachable), None),
        (route(11, "10.9.0.0/16", NextHop::Throw), eni),
        (
            Route {
                protocol: 4,
                ..route(11, "10.9.0.0/16", NextHop::Throw)
            },
            None,
        ),
    ] {
        let mut observed = host();
        observed.routes.insert(route);
        assert_eq!(
            is_ours(&observed, Object::Route(route)),
            None,
            "no sign of us"
        );
        observed.routes.insert(fence(11));
        assert_eq!(is_ours(&observed, Object::Route(route)), scope, "{route:?}");

        let mut observed = host();
        observed.routes.insert(route);
        let selector = mark(0x0200_0000, 0x3f00_0000);
        observed
            .rules
            .insert(rule(111, selector, Action::Table(11)));
        assert_eq!(is_ours(&observed, Object::Route(route)), scope, "{route:?}");
    }
    let mut observed = host();
    let foreign = route(9, "0.0.0.0/0", via("10.0.1.1"));
    observed.routes.extend([foreign, fence(9)]);
    assert_eq!(is_ours(&observed, Object::Route(foreign)), None);
    assert_eq!(is_ours(&observed, Object::Route(fence(9))), None);
}

#[test]
fn routes_of_the_pod_table_by_device_and_metric() {
    let pod = route(220, "10.0.0.20/32", NextHop::Device(100));
    let block = Route {
        metric: constants::METRIC_UNREACHABLE,
        ..route(220, "10.0.1.64/28", NextHop::Unreachable)
    };
    for (route, scope) in [
        (pod, Some(Scope::Endpoint(id("a")))),
        (block, Some(Scope::Node)),
        (Route { metric: 5, ..pod }, None),
        (Route { metric: 0, ..block }, None),
        (route(220, "10.0.0.20/32", NextHop::Device(BRIDGE)), None),
        (route(220, "10.0.0.0/24", NextHop::Device(100)), None),
        (route(220, "0.0.0.0/0", via("10.0.1.1")), None),
    ] {
        let mut observed = host_with_pod();
        observed.routes.insert(route);
        assert_eq!(is_ours(&observed, Object::Route(route)), scope, "{route:?}");
    }
}

#[test]
fn devices_by_kind_name_and_mac() {
    let pod = host_with_pod().links[&100].clone();
    assert_eq!(endpoint_device(&pod), Some(id("a")));
    for foreign in [
        Link {
            kind: LinkKind::Other,
            ..pod.clone()
        },
        Link {
            mac: Some(mac(5)),
            group: 0,
            ..pod.clone()
        },
        Link {
            name: "tow0".into(),
            ..pod.clone()
        },
        Link {
            name: id("b").device(),
            group: 0,
            ..pod.clone()
        },
    ] {
        assert_eq!(endpoint_device(&foreign), None, "{foreign:?}");
    }
    let changed = Link {
        mac: Some(mac(5)),
        ..pod
    };
    assert_eq!(endpoint_device(&changed), Some(id("a")), "by its group");
    assert_eq!(finished_device(&changed), Some(id("a")));
    assert_eq!(intact_device(&changed), None);
}

#[test]
fn a_device_is_finished_by_its_group_or_because_it_is_up() {
    let ours = constants::DEVICE_GROUP;
    for (up, group, finished) in [
        (false, ours, true),
        (true, ours, true),
        (true, 0, true),
        (true, 7, true),
        (false, 0, false),
        (false, 7, false),
    ] {
        let pod = Link {
            up,
            group,
            ..pod_link(100, "a")
        };
        let expected = finished.then(|| id("a"));
        assert_eq!(finished_device(&pod), expected, "up {up}, group {group}");
        assert_eq!(endpoint_device(&pod), Some(id("a")), "ours all the same");
    }
    let foreign = Link {
        mac: Some(mac(5)),
        group: 0,
        up: true,
        ..pod_link(100, "a")
    };
    assert_eq!(finished_device(&foreign), None);
}

#[test]
fn neighbours_by_device_and_mac() {
    let ours = Neighbour {
        ifindex: 100,
        address: [10, 0, 0, 20].into(),
        mac: id("a").pod_mac(),
    };
    let foreign = [
        Neighbour {
            mac: mac(5),
            ..ours
        },
        Neighbour {
            ifindex: BRIDGE,
            ..ours
        },
    ];
    let mut observed = host_with_pod();
    observed.neighbours.insert(ours);
    observed.neighbours.extend(foreign);
    let scope = Some(Scope::Endpoint(id("a")));
    assert_eq!(is_ours(&observed, Object::Neighbour(ours)), scope);
    for neighbour in foreign {
        assert_eq!(is_ours(&observed, Object::Neighbour(neighbour)), None);
    }
}

#[test]
fn an_address_of_the_agents_own_by_what_the_datapath_knows() {
    let own = address(1, "10.0.1.77/32");
    let mut observed = host();
    observed.addresses.insert(own);
    assert_eq!(is_ours(&observed, Object::Address(own)), None);
    for (entry, expected) in [
        (AddressEntry::host(), None),
        (AddressEntry::translation(1), Some(Scope::Node)),
    ] {
        let entry = MapEntry::Address(own.net.addr(), entry);
        observed.maps.insert(entry.key(), entry);
        assert_eq!(is_ours(&observed, Object::Address(own)), expected);
    }
    // With a longer network the address is foreign. Both are foreign if another device has it, too.
    for (other, also) in [
        (address(1, "10.0.1.77/24"), Some(Scope::Node)),
        (address(BRIDGE, "10.0.1.77/32"), None),
    ] {
        observed.addresses.insert(other);
        assert_eq!(is_ours(&observed, Object::Address(other)), None);
        assert_eq!(is_ours(&observed, Object::Address(own)), also);
    }
}

#[test]
fn an_address_by_its_rule_and_its_device() {
    let own = address(ETH0 + 1, "10.0.1.10/32");
    let number = EniNumber(1);
    let scope = Some(Scope::Eni(number));
    let mut bare = host();
    bare.addresses.insert(own);
    assert_eq!(is_ours(&bare, Object::Address(own)), None);

    let own_rule = rule(112, from("10.0.1.10/32"), Action::Table(11));
    let mut by_rule = bare.clone();
    by_rule.rules.insert(own_rule);
    assert_eq!(is_ours(&by_rule, Object::Address(own)), None);

    let mut by_map = by_rule.clone();
    let entry = MapEntry::EniDevice(own.ifindex, number);
    by_map.maps.insert(MapKey::EniDevice(own.ifindex), entry);
    assert_eq!(is_ours(&by_map, Object::Address(own)), scope);

    let mut by_route = by_rule;
    by_route
        .routes
        .insert(route(11, "0.0.0.0/0", via("10.0.1.1")));
    assert_eq!(is_ours(&by_route, Object::Address(own)), scope);

    // An equal address on another device, or with a longer network, is foreign.
    for other in [
        address(BRIDGE, "10.0.1.10/32"),
        address(own.ifindex, "10.0.1.10/24"),
    ] {
        by_route.addresses.insert(other);
        assert_eq!(is_ours(&by_route, Object::Address(other)), None);
    }
}

#[test]
fn properties_of_a_device_are_never_removed() {
    let mut observed = host_with_pod();
    observed.rules.insert(rule(112, Selector::All, Action::Nop));
    for owned in recognise(&observed, 2) {
        assert!(owned.removal().is_some(), "{owned:?}");
    }
    let up = Owned {
        object: Object::Up(3),
        ifindex: 3,
        scope: Scope::Node,
    };
    assert_eq!(up.removal(), None);
}
