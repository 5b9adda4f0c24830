//! The classes of every prefix.

use std::sync::Arc;

use datapath_common::abi::Addr;
use proptest::prelude::*;

use super::*;
use crate::intent::masquerade::Policy;
use crate::kernel::fixture::{host, intent};

fn class_of(classes: &BTreeMap<IpNet, DestinationClass>, net: &str) -> DestinationClass {
    classes[&net.parse::<IpNet>().unwrap()]
}

fn agent_file(cidrs: &[&str]) -> Policy {
    let nets = cidrs
        .iter()
        .map(|net| (net.parse().unwrap(), "file".into()));
    let agent = AgentCidrs {
        cidrs: nets.collect(),
        ..AgentCidrs::default()
    };
    Policy {
        agent: Some(Arc::new(agent)),
        pools: None,
    }
}

#[test]
fn a_prefix_has_the_classes_of_all_that_contain_it() {
    let mut intent = intent();
    intent.settings.services.configured = ["10.0.0.0/8", "10.0.1.64/28", "172.20.0.0/16"]
        .map(|net| net.parse().unwrap())
        .into();
    let classes = classes(&known(&intent, &host()));
    let class = |net| class_of(&classes, net);
    let (block, service, vpc) = (
        DestinationClass::BLOCK,
        DestinationClass::SERVICE,
        DestinationClass::VPC,
    );
    assert_eq!(class("10.0.0.0/8"), service);
    assert_eq!(class("10.0.0.0/16"), service.union(vpc));
    assert_eq!(class("10.0.1.64/28"), service.union(vpc).union(block));
    assert_eq!(class("172.20.0.0/16"), service);
    let link_local = DestinationClass::LINK_LOCAL;
    assert_eq!(class("169.254.0.0/16"), link_local);
    assert_eq!(class("fe80::/10"), link_local);
    let metadata = DestinationClass::METADATA;
    assert_eq!(class("169.254.169.254/32"), link_local.union(metadata));
    assert_eq!(class("fd00:ec2::254/128"), metadata);
}

#[test]
fn what_no_network_routes_is_so_but_for_what_a_more_specific_prefix_names() {
    let mut intent = intent();
    let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect();
    intent.settings.masquerade.native = nets(&["0.0.0.0/0", "::/0", "240.1.0.0/16"]);
    intent.settings.services.configured = nets(&["240.2.0.0/16", "0.0.0.0/8"]);
    intent.settings.masquerade.agent = Some("/file".into());
    intent.policy = agent_file(&["240.3.0.0/16", "240.1.1.0/24"]);
    let classes = classes(&known(&intent, &host()));
    let is_unroutable = |net| class_of(&classes, net).contains(DestinationClass::UNROUTABLE);
    for net in [
        "127.0.0.0/8",
        "240.0.0.0/4",
        "::/96",
        "100::/64",
        "fec0::/10",
        "240.3.0.0/16",
    ] {
        assert!(is_unroutable(net), "{net}");
    }
    // The longer prefix counts, and of one prefix what names it.
    for net in [
        "240.1.0.0/16",
        "240.1.1.0/24",
        "240.2.0.0/16",
        "0.0.0.0/8",
        "::/0",
        "0.0.0.0/0",
    ] {
        assert!(!is_unroutable(net), "{net}");
    }
}

#[test]
fn whatever_is_unroutable_may_be_by_the_look_of_it() {
    for (net, _) in unroutable::PREFIXES {
        let net: IpNet = net.parse().unwrap();
        for address in [net.network(), net.broadcast()] {
            assert!(Addr::from(address).may_be_unroutable(), "{address}");
        }
    }
}

#[test]
fn what_the_cluster_tells_of_services_counts_but_for_addresses_of_the_vpc() {
    let mut intent = intent();
    let addresses = ["198.51.100.7", "10.0.7.7", "169.254.169.254", "fe80::7"];
    intent.settings.services.cluster = ClusterServices {
        cidrs: Some(["10.96.0.0/16".parse().unwrap()].into()),
        addresses: Some(addresses.map(|address| address.parse().unwrap()).into()),
    };
    let classes = classes(&known(&intent, &host()));
    let is_service = |net: &str| {
        let class = classes.get(&net.parse::<IpNet>().unwrap());
        class.is_some_and(|class| class.contains(DestinationClass::SERVICE))
    };
    for net in ["172.20.0.0/16", "10.96.0.0/16", "198.51.100.7/32"] {
        assert!(is_service(net), "{net}");
    }
    for net in ["10.0.7.7/32", "169.254.169.254/32", "fe80::7/128"] {
        assert!(!is_service(net), "{net}");
    }
}

#[test]
fn until_the_cluster_has_told_all_services_those_that_are_there_stay() {
    let mut intent = intent();
    let mut observed = host();
    let there: IpNet = "10.96.0.0/16".parse().unwrap();
    let entry = MapEntry::Destination(there, DestinationClass::SERVICE);
    observed.maps.insert(entry.key(), entry);
    let has = |intent: &Intent| classes(&known(intent, &observed)).contains_key(&there);
    assert!(!has(&intent), "everything is known");
    for unknown in [
        ClusterServices::default(),
        ClusterServices {
            cidrs: None,
            ..ClusterServices::none()
        },
        ClusterServices {
            addresses: None,
            ..ClusterServices::none()
        },
    ] {
        intent.settings.services.cluster = unknown;
        assert!(has(&intent));
    }
}

#[test]
fn the_agent_file_counts_only_where_it_is_used() {
    let mut intent = intent();
    intent.policy = agent_file(&["192.168.0.0/16"]);
    let net: IpNet = "192.168.0.0/16".parse().unwrap();
    assert!(!classes(&known(&intent, &host())).contains_key(&net));
    intent.settings.masquerade.agent = Some("/file".into());
    let used = classes(&known(&intent, &host()));
    assert_eq!(used[&net], DestinationClass::MASQ_AGENT);
    // CIDRs of the VPC stay exempt, whatever the file contains.
    assert!(class_of(&used, "10.0.0.0/16").contains(DestinationClass::VPC));
    let agent = AgentCidrs {
        masq_link_local: true,
        ..AgentCidrs::default()
    };
    intent.policy.agent = Some(Arc::new(agent));
    let used = classes(&known(&intent, &host()));
    assert!(!used.contains_key(&LINK_LOCAL_V4.parse().unwrap()));
    assert!(used.contains_key(&LINK_LOCAL_V6.parse().unwrap()));
}

#[test]
fn without_a_good_file_what_is_there_stays_else_the_standard_list_holds() {
    let mut intent = intent();
    intent.settings.masquerade.agent = Some("/file".into());
    let mut observed = host();
    let standard = classes(&known(&intent, &observed));
    assert!(class_of(&standard, "100.64.0.0/10").contains(DestinationClass::MASQ_AGENT));
    intent.policy = agent_file(&["192.168.0.0/16", "10.0.0.0/8"]);
    let good = classes(&known(&intent, &observed));
    for (net, class) in &good {
        let entry = MapEntry::Destination(*net, *class);
        observed.maps.insert(entry.key(), entry);
    }
    intent.policy.agent = None;
    assert_eq!(classes(&known(&intent, &observed)), good);
}

#[test]
fn a_wide_prefix_of_ipv6_says_nothing_of_ipv4() {
    let mut intent = intent();
    intent.settings.masquerade.native = ["::/0".parse().unwrap()].into();
    let classes = classes(&known(&intent, &host()));
    assert_eq!(class_of(&classes, "::/0"), DestinationClass::NATIVE);
    assert_eq!(class_of(&classes, "0.0.0.0/0"), DestinationClass::NONE);
    assert!(!class_of(&classes, "10.0.0.0/16").contains(DestinationClass::NATIVE));
}

#[test]
fn every_exemption_is_told_with_its_source() {
    let mut intent = intent();
    intent.settings.masquerade.native = ["198.51.100.0/24".parse().unwrap()].into();
    intent.settings.masquerade.agent = Some("/file".into());
    intent.policy = agent_file(&["192.168.0.0/16"]);
    let observed = host();
    let mut builder = Builder::new(&intent, &observed);
    let reported: Vec<(String, String, String)> = add(&mut builder, &HostNetworks::default())
        .into_iter()
        .map(|one| (one.cidr.to_string(), one.class, one.source))
        .collect();
    let is_there = |net: &str, class: &str, source: &str| {
        let wanted = (net.to_owned(), class.to_owned(), source.to_owned());
        assert!(reported.contains(&wanted), "{wanted:?} {reported:?}");
    };
    is_there("10.0.0.0/16", "vpc", "VPC of eni-0");
    is_there(
        "198.51.100.0/24",
        "native",
        "masquerade.native-routing-cidrs",
    );
    is_there("192.168.0.0/16", "masq-agent", "file");
    is_there("169.254.169.254/32", "metadata", "instance metadata");
    let vpcs = reported
        .iter()
        .filter(|(_, class, _)| class == "vpc")
        .count();
    assert_eq!(vpcs, 1, "each once: {reported:?}");
}

fn net() -> impl Strategy<Value = IpNet> {
    (0..4_u8, 0..4_u8, 8..=12_u8).prop_map(|(a, b, length)| {
        let net = Ipv4Net::new([10 + a * 16, b * 64, 0, 0].into(), length).unwrap();
        IpNet::from(net).trunc()
    })
}

proptest! {
    /// The longest prefix has the classes of all prefixes that contain an address.
    #[test]
    fn the_longest_prefix_tells_all(
        native in prop::collection::btree_set(net(), 0..4),
        services in prop::collection::btree_set(net(), 0..4),
        agent in prop::collection::btree_set(net(), 0..4),
        address in (0..4_u8, 0..4_u8),
    ) {
        let mut intent = intent();
        intent.node.enis.clear();
        intent.settings.services.configured = services.clone();
        intent.settings.masquerade.native = native.clone();
        intent.settings.masquerade.agent = Some("/file".into());
        let texts: Vec<String> = agent.iter().map(ToString::to_string).collect();
        intent.policy = agent_file(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let address = IpAddr::from([10 + address.0 * 16, address.1 * 64, 1, 1]);
        let classes = classes(&known(&intent, &host()));
        let longest = classes.iter().filter(|(net, _)| net.contains(&address));
        let found = longest.max_by_key(|(net, _)| net.prefix_len());
        let found = found.map_or(DestinationClass::NONE, |(_, class)| *class);
        for (nets, class) in [
            (&native, DestinationClass::NATIVE),
            (&services, DestinationClass::SERVICE),
            (&agent, DestinationClass::MASQ_AGENT),
        ] {
            let expected = nets.iter().any(|net| net.contains(&address));
            prop_assert_eq!(found.contains(class), expected, "{:?}", class);
        }
    }
}
