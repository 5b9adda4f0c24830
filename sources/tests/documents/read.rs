//! Reading valid documents.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::ids::EniNumber;
use ipam::Family;
use ipnet::IpNet;
use loader::intent::{Eni, Node};
use serde_json::{Value, json};

use super::support::{
    ENI, PREFIX_ENI, PREFIX_YAML, PRIMARY, SECONDARY_JSON, SECONDARY_YAML, parse, prefix, problem,
    remove, secondary, set,
};

fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
    texts.iter().map(|t| t.parse().expect("a CIDR")).collect()
}

fn eni(node: &Node, number: u8) -> &Eni {
    &node.enis[&EniNumber(number)]
}

fn read(document: &Value) -> Node {
    parse(&document.to_string()).unwrap_or_else(|e| panic!("{e}"))
}

/// Fields that allocation needs apart from the blocks.
#[test]
fn subnets_tags_and_rules_of_blocks_are_read() {
    let node = parse(PREFIX_YAML).unwrap();
    assert_eq!(eni(&node, 0).subnet_id, "subnet-0a9");
    assert_eq!(node.pre_allocate, Some(1));
    let default = &node.allocated[0];
    assert_eq!(default.pool, "default");
    assert!(default.edges.allow_first && default.edges.allow_last);
    assert_eq!(default.cidrs.len(), 1);
    let mut document = prefix();
    let tags = format!("{PREFIX_ENI}/tags");
    set(&mut document, &tags, json!({"team": "blue"}));
    let node = read(&document);
    assert!(
        node.enis
            .values()
            .any(|eni| eni.tags.get("team").is_some_and(|team| team == "blue"))
    );
    set(&mut document, "/spec/ipam/pre-allocate", json!(-1));
    let (text, _) = problem(&document);
    assert!(
        text.starts_with("spec.ipam.pre-allocate: \"-1\" is refused"),
        "{text}"
    );
}

#[test]
fn secondary_addresses_are_blocks_of_one_address() {
    let node = parse(SECONDARY_YAML).unwrap();
    assert_eq!(node, parse(SECONDARY_JSON).unwrap());
    assert_eq!(node.name, "ip-100-120-134-10.ec2.internal");
    let addresses: [IpAddr; 2] = [
        "100.120.134.10".parse().unwrap(),
        "2001:db8:120:a::10".parse().unwrap(),
    ];
    assert_eq!(node.addresses.internal, addresses);
    assert_eq!(node.enis.len(), 2);
    assert_eq!(node.unfollowed.notes, Vec::<String>::new());

    let primary = eni(&node, 0);
    assert_eq!(primary.id, "eni-0a1f6e2d3c4b5a697");
    assert_eq!(
        primary.blocks,
        nets(&[
            "100.120.134.20/32",
            "100.120.134.21/32",
            "2001:db8:120:a::20/128"
        ])
    );
    let second = eni(&node, 1);
    assert_eq!(second.mac.to_string(), "0a:11:22:33:44:55");
    assert_eq!(second.primary_address, "100.120.133.9".parse().ok());
    assert_eq!(second.subnet, "100.120.0.0/16".parse().ok());
    assert_eq!(second.gateway(Family::V4), "100.120.0.1".parse().ok());
    assert_eq!(second.gateway(Family::V6), "fe80:ec2::1".parse().ok());
    let vpc: Vec<String> = second.vpc_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(
        vpc,
        [
            "10.0.0.0/16",
            "100.120.0.0/16",
            "100.121.0.0/16",
            "2001:db8:120::/56"
        ]
    );
    assert_eq!(
        second.blocks,
        nets(&[
            "100.120.134.75/32",
            "100.120.137.182/32",
            "100.120.248.50/32",
            "2001:db8:120:a::75/128",
            "2001:db8:120:a::182/128",
        ])
    );
    for eni in node.enis.values() {
        assert_eq!(eni.excluded, None);
        assert!(!eni.use_primary_address);
    }
}

#[test]
fn addresses_that_a_prefix_covers_are_not_repeated() {
    let node = parse(PREFIX_YAML).unwrap();
    assert_eq!(
        eni(&node, 1).blocks,
        nets(&["100.121.95.96/28", "2001:db8:121:a:f::/80"])
    );
    assert_eq!(eni(&node, 1).excluded, None);
    assert!(eni(&node, 0).blocks.is_empty());
    assert_eq!(
        eni(&node, 0).excluded.as_deref(),
        Some("its number 0 is below spec.eni.first-interface-index 1")
    );
    assert_eq!(node.unfollowed.notes, Vec::<String>::new());
}

#[test]
fn single_addresses_beside_a_prefix_stay() {
    let mut document = prefix();
    for address in [
        "100.121.95.112",
        "2001:db8:121:a:f::1",
        "2001:db8:121:a:e::1",
    ] {
        set(
            &mut document,
            &format!("{PREFIX_ENI}/addresses/-"),
            json!(address),
        );
    }
    assert_eq!(
        eni(&read(&document), 1).blocks,
        nets(&[
            "100.121.95.96/28",
            "100.121.95.112/32",
            "2001:db8:121:a:f::/80",
            "2001:db8:121:a:e::1/128",
        ])
    );
}

#[test]
fn tags_exclude_an_eni_whose_blocks_are_still_known() {
    let mut document = secondary();
    set(
        &mut document,
        &format!("{ENI}/tags"),
        json!({"cilium": "off"}),
    );
    let node = read(&document);
    assert_eq!(
        eni(&node, 1).excluded.as_deref(),
        Some("its tags match spec.eni.exclude-interface-tags (cilium=off)")
    );
    assert_eq!(eni(&node, 1).blocks.len(), 5);
    assert!(node.owner_of("100.120.134.75".parse().unwrap()).is_none());
}

#[test]
fn use_primary_address_gives_it_to_pods_except_on_the_primary() {
    let mut document = secondary();
    set(&mut document, "/spec/eni/use-primary-address", json!(true));
    // Cilium lists the primary address then, but it counts in both cases.
    set(
        &mut document,
        &format!("{ENI}/addresses/-"),
        json!("100.120.133.9"),
    );
    set(
        &mut document,
        &format!("{PRIMARY}/addresses/-"),
        json!("100.120.134.10"),
    );
    let node = read(&document);
    assert!(eni(&node, 1).use_primary_address);
    assert!(
        eni(&node, 1)
            .blocks
            .contains(&"100.120.133.9/32".parse().unwrap())
    );
    assert!(!eni(&node, 0).use_primary_address);
    assert!(!eni(&node, 0).owns("100.120.134.10".parse().unwrap()));
    let notes = node.unfollowed.notes.join("\n");
    assert!(
        notes.contains("spec.eni.use-primary-address: ignored on eni-0a1f6e2d3c4b5a697"),
        "{notes}"
    );
    let asks = "its device has no address, so the kernel resolves the gateway with another ENI's";
    assert!(notes.contains(asks), "{notes}");
}

#[test]
fn a_primary_address_in_the_list_is_noted_and_left_out() {
    let mut document = secondary();
    set(
        &mut document,
        &format!("{ENI}/addresses/-"),
        json!("100.120.133.9"),
    );
    set(
        &mut document,
        &format!("{PRIMARY}/addresses/-"),
        json!("2001:db8:120:a::10"),
    );
    let node = read(&document);
    assert!(!eni(&node, 1).owns("100.120.133.9".parse().unwrap()));
    assert!(!eni(&node, 0).owns("2001:db8:120:a::10".parse().unwrap()));
    assert_eq!(
        node.unfollowed.notes,
        [
            "status.eni.enis.eni-0a1f6e2d3c4b5a697.addresses[3]: 2001:db8:120:a::10 is the node's own address: not for pods",
            "status.eni.enis.eni-0e979576c285fd4d5.addresses[5]: 100.120.133.9 is the ENI's primary address: not for pods",
        ]
    );
}

#[test]
fn a_flat_pool_that_is_ahead_of_the_status_is_noted() {
    let mut document = secondary();
    set(
        &mut document,
        "/spec/ipam/pool/100.120.1.1",
        json!({"resource": "eni-0e979576c285fd4d5"}),
    );
    set(
        &mut document,
        "/spec/ipam/pool/10.0.0.300",
        json!({"resource": "eni-0"}),
    );
    set(
        &mut document,
        "/spec/ipam/ipv6-pool",
        json!({"2001:db8::9": {"resource": "eni-0e979576c285fd4d5"}}),
    );
    assert_eq!(
        read(&document).unfollowed.notes,
        [
            "spec.ipam.pool.10.0.0.300: the key is no address: not used",
            "spec.ipam.pool.100.120.1.1: status.eni.enis.eni-0e979576c285fd4d5 does not have it: not used",
            "spec.ipam.ipv6-pool.2001:db8::9: status.eni.enis.eni-0e979576c285fd4d5 does not have it: not used"
        ]
    );
}

#[test]
fn what_kubernetes_leaves_out_or_nulls_is_zero() {
    for pointer in [
        "/status",
        "/spec/eni",
        "/spec/addresses",
        "/spec/ipam",
        "/status/eni/enis",
    ] {
        for null in [false, true] {
            let mut document = secondary();
            if null {
                set(&mut document, pointer, Value::Null);
            } else {
                remove(&mut document, pointer);
            }
            read(&document);
        }
    }
    let mut document = secondary();
    for field in ["addresses", "prefixes", "ipv6-prefixes", "tags"] {
        set(&mut document, &format!("{ENI}/{field}"), Value::Null);
    }
    remove(&mut document, &format!("{ENI}/id"));
    assert_eq!(eni(&read(&document), 1).id, "eni-0e979576c285fd4d5");
    for field in ["id", "number"] {
        set(&mut document, &format!("{PRIMARY}/{field}"), Value::Null);
    }
    assert_eq!(eni(&read(&document), 0).id, "eni-0a1f6e2d3c4b5a697");
}

#[test]
fn a_new_node_has_no_enis_yet() {
    let node = parse("apiVersion: cilium.io/v2\nkind: CiliumNode\nmetadata: {name: n1}\n").unwrap();
    assert_eq!((node.name.as_str(), node.enis.len()), ("n1", 0));
}
