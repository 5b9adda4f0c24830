//! Every field with a value that it must not have: the error names path, value and what is
//! allowed.

use std::fmt::Write as _;

use serde_json::{Value, json};

use api::ids::EniNumber;
use loader::intent::Node;

use super::support::{
    ENI, PREFIX_ENI, error, parse, prefix, problem, reason, remove, secondary, set,
};

const ENI_ID: &str = "eni-0e979576c285fd4d5";
const PREFIX_ENI_ID: &str = "eni-0f05f2edf01f99001";

fn says(text: &str, path: &str, value: &str, allowed: &str) {
    let start = format!("{path}: ");
    assert!(text.starts_with(&start), "{text}\nmust start with {start}");
    for part in [value, allowed] {
        assert!(text.contains(part), "{text}\nmust contain {part}");
    }
}

fn refused(document: &Value, path: &str, value: &str, allowed: &str) -> Node {
    let (text, node) = problem(document);
    says(&text, path, value, allowed);
    node
}

fn path_of(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        if part.parse::<usize>().is_ok() {
            write!(path, "[{part}]").expect("a string");
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(part);
        }
    }
    path
}

fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "sequence".to_owned(),
        Value::Object(_) => "map".to_owned(),
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Sets the field, and expects the value or its type in the message, and the rest of the document
/// to be valid.
fn check(mut document: Value, pointer: &str, value: Value, allowed: &str) -> Node {
    let shown = shown(&value);
    set(&mut document, pointer, value);
    refused(&document, &path_of(pointer), &shown, allowed)
}

/// Checks a bad value of a field without which the whole document is refused.
fn check_whole(mut document: Value, pointer: &str, value: Value, allowed: &str) {
    let shown = shown(&value);
    set(&mut document, pointer, value);
    says(&error(&document), &path_of(pointer), &shown, allowed);
}

/// The ENIs that are not touched by what is wrong with this one.
fn others_hold(node: &Node, untouched: &Node, id: &str) {
    let of = |node: &Node| -> Vec<_> {
        let enis = node.enis.values().filter(|eni| eni.id != id);
        enis.cloned().collect()
    };
    assert_eq!(of(node), of(untouched));
}

#[test]
fn the_object_itself() {
    let cases = [
        (
            "/apiVersion",
            json!("cilium.io/v2alpha1"),
            "allowed: cilium.io/v2",
        ),
        ("/apiVersion", json!(2), "expected a string"),
        ("/kind", json!("CiliumPodIPPool"), "allowed: CiliumNode"),
        ("/kind", json!(true), "expected a string"),
        ("/spec", json!("x"), "expected an object"),
        ("/spec/eni", json!("x"), "expected an object"),
        ("/status", json!(1), "expected an object"),
        ("/status/eni", json!([]), "expected an object"),
        ("/status/eni/enis", json!("x"), "expected a map"),
    ];
    for (pointer, value, allowed) in cases {
        check_whole(secondary(), pointer, value, allowed);
    }
    let cases = [
        (
            "/metadata/name",
            json!("Node_1"),
            "lower case letters, digits, '-' and '.'",
        ),
        (
            "/metadata/name",
            json!("a..b"),
            "the name of a Kubernetes node",
        ),
        (
            "/metadata/name",
            json!("-a"),
            "the name of a Kubernetes node",
        ),
        ("/metadata/name", json!([7]), "expected a string"),
        ("/metadata", json!("n1"), "expected struct Metadata"),
    ];
    for (pointer, value, allowed) in cases {
        let node = check(secondary(), pointer, value, allowed);
        assert_eq!(node.enis.len(), 2);
    }
}

#[test]
fn the_spec() {
    let cases = [
        (
            "/spec/addresses/0/ip",
            json!("100.120.134.256"),
            "allowed: a unicast IPv4 or IPv6 address",
        ),
        (
            "/spec/addresses/0/ip",
            json!("127.0.0.1"),
            "allowed: a unicast IPv4 or IPv6 address",
        ),
        ("/spec/addresses/0/ip", json!("fe80::1"), "not link-local"),
        ("/spec/addresses/1/ip", json!(10), "expected a string"),
        (
            "/spec/addresses/0/type",
            json!({"a": 1}),
            "expected a string",
        ),
        (
            "/spec/addresses",
            json!("100.120.134.10"),
            "expected a sequence",
        ),
        (
            "/spec/eni/first-interface-index",
            json!(-1),
            "allowed: 0 or more",
        ),
        (
            "/spec/eni/first-interface-index",
            json!("1"),
            "expected i64",
        ),
        (
            "/spec/eni/exclude-interface-tags",
            json!("off"),
            "expected a map",
        ),
        (
            "/spec/eni/exclude-interface-tags/cilium",
            json!([false]),
            "expected a string",
        ),
        (
            "/spec/eni/use-primary-address",
            json!("yes"),
            "expected a boolean",
        ),
        ("/spec/ipam/pool", json!(3), "expected a map"),
        (
            "/spec/ipam/pool/100.120.134.75",
            json!("eni-1"),
            "expected struct PoolEntry",
        ),
    ];
    for (pointer, value, allowed) in cases {
        check(secondary(), pointer, value, allowed);
    }
}

/// Fields of an ENI, values that they refuse, and a part of what is said of each.
fn bad_own_fields() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        (
            "id",
            json!("eni-other"),
            "allowed: \"eni-0e979576c285fd4d5\", its key, or none",
        ),
        ("id", json!(5), "expected a string"),
        (
            "ip",
            json!("100.120.133"),
            "allowed: a unicast IPv4 address (10.0.1.5)",
        ),
        (
            "ip",
            json!("2001:db8::9"),
            "allowed: a unicast IPv4 address",
        ),
        ("ip", json!("224.0.0.1"), "allowed: a unicast IPv4 address"),
        (
            "ip",
            json!("100.121.0.9"),
            "allowed: inside the ENI's subnet 100.120.0.0/16",
        ),
        (
            "ip",
            json!("100.120.0.1"),
            "allowed: clear of 100.120.0.1, the VPC's router",
        ),
        (
            "mac",
            json!("0a:11:22:33:44"),
            "allowed: a unicast MAC address, six bytes",
        ),
        (
            "mac",
            json!("0a-11-22-33-44-55"),
            "with colons (0a:11:22:33:44:55)",
        ),
        (
            "mac",
            json!("01:00:5e:00:00:01"),
            "allowed: a unicast MAC address",
        ),
        (
            "mac",
            json!("00:00:00:00:00:00"),
            "allowed: a unicast MAC address",
        ),
        ("mac", json!(11), "expected a string"),
        ("number", json!(-1), "allowed: 0 or more"),
        ("number", json!(4_294_967_296_i64), "allowed: 0 or more"),
        ("number", json!("1"), "expected i64"),
        ("number", json!(1.5), "expected i64"),
        ("tags", json!(["a"]), "expected a map"),
        ("tags", json!("a"), "expected a map"),
    ]
}

#[test]
fn an_eni_s_own_fields() {
    for (field, value, allowed) in bad_own_fields() {
        unusable(field, value, allowed);
    }
}

/// A value that makes the secondary ENI not ready, and affects no other ENI.
fn unusable(field: &str, value: Value, allowed: &str) {
    let untouched = parse(&secondary().to_string()).expect("good");
    let pointer = format!("{ENI}/{field}");
    let node = check(secondary(), &pointer, value, allowed);
    assert_eq!(
        reason(&node, ENI_ID),
        node.unfollowed.refused[0].to_string()
    );
    others_hold(&node, &untouched, ENI_ID);
}

#[test]
fn a_high_device_index_is_no_fault() {
    for index in [63, 300, 70_000] {
        let mut document = secondary();
        set(&mut document, &format!("{ENI}/number"), json!(index));
        let node = parse(&document.to_string()).expect("good");
        let eni = &node.enis[&EniNumber(1)];
        assert_eq!((eni.id.as_str(), eni.device_index), (ENI_ID, index));
        assert_eq!(node.unfollowed.refused, []);
    }
}

#[test]
fn subnet_and_vpc() {
    let subnet = "allowed: an IPv4 CIDR, /16 to /28 (10.0.1.0/24)";
    let vpc = "allowed: an IPv4 CIDR, /8 to /28 (10.0.0.0/16), or an IPv6 CIDR, /16 to /64";
    let cases = [
        ("subnet/cidr", json!("100.120.0.0"), subnet),
        ("subnet/cidr", json!("100.120.0.0/33"), subnet),
        ("subnet/cidr", json!("100.0.0.0/8"), subnet),
        ("subnet/cidr", json!("100.120.133.8/29"), subnet),
        ("subnet/cidr", json!("2001:db8::/64"), subnet),
        (
            "subnet/cidr",
            json!("100.120.133.9/16"),
            "allowed: 100.120.0.0/16",
        ),
        ("subnet/cidr", json!(16), "expected a string"),
        ("subnet", json!("100.120.0.0/16"), "expected struct Subnet"),
        ("vpc/primary-cidr", json!("10.0.0.0/16/"), vpc),
        ("vpc/primary-cidr", json!("0.0.0.0/0"), vpc),
        (
            "vpc/primary-cidr",
            json!("10.0.0.1/16"),
            "allowed: 10.0.0.0/16",
        ),
        ("vpc/primary-cidr", json!(false), "expected a string"),
        ("vpc/cidrs", json!("10.0.0.0/16"), "expected a sequence"),
        ("vpc", json!("vpc-1"), "expected struct Vpc"),
    ];
    for (field, value, allowed) in cases {
        unusable(field, value, allowed);
    }
    let untouched = parse(&secondary().to_string()).expect("good");
    for (field, value) in [
        ("vpc/cidrs/0", json!("100.120.0.0/31")),
        ("vpc/cidrs/1", json!("ff00::/56")),
        ("vpc/cidrs/2", json!("2001:db8::/96")),
    ] {
        let node = check(secondary(), &format!("{ENI}/{field}"), value, vpc);
        let eni = &node.enis[&EniNumber(1)];
        let lost = untouched.enis[&EniNumber(1)].vpc_cidrs.len() - eni.vpc_cidrs.len();
        assert_eq!(lost, 1, "{:?}", eni.vpc_cidrs);
        others_hold(&node, &untouched, ENI_ID);
    }
}

/// Fields with addresses, values that they refuse, and a part of what is said of each.
fn bad_addresses() -> Vec<(&'static str, Value, &'static str)> {
    let address = "allowed: a unicast IPv4 or IPv6 address";
    let v4 = "allowed: an IPv4 /28 (10.0.1.16/28)";
    let v6 = "allowed: an IPv6 /80 (2001:db8::/80)";
    vec![
        ("addresses/0", json!("100.121.95.96/32"), address),
        ("addresses/1", json!("0.0.0.0"), address),
        ("addresses/2", json!("::ffff:100.121.95.98"), address),
        ("addresses/3", json!(100), "expected a string"),
        (
            "addresses/4",
            json!("100.120.1.1"),
            "allowed: inside the ENI's subnet 100.121.64.0/18",
        ),
        (
            "addresses/5",
            json!("100.121.64.0"),
            "the subnet's network address",
        ),
        (
            "addresses/6",
            json!("100.121.64.1"),
            "clear of 100.121.64.1, the VPC's router",
        ),
        (
            "addresses/7",
            json!("100.121.127.255"),
            "other than the subnet's last one",
        ),
        ("addresses", json!("100.121.95.96"), "expected a sequence"),
        ("prefixes/0", json!("100.121.95.96/27"), v4),
        (
            "prefixes/0",
            json!("100.121.95.100/28"),
            "allowed: 100.121.95.96/28",
        ),
        ("prefixes/0", json!("2001:db8::/80"), v4),
        (
            "prefixes/0",
            json!("100.120.0.16/28"),
            "inside the ENI's subnet 100.121.64.0/18",
        ),
        (
            "prefixes/0",
            json!("100.121.64.0/28"),
            "clear of 100.121.64.0, the subnet's network",
        ),
        ("prefixes/0", json!(28), "expected a string"),
        ("prefixes", json!("100.121.95.96/28"), "expected a sequence"),
        (
            "ipv6-prefixes/0",
            json!("2001:db8:121:a:f::/64"),
            "allowed: 2001:db8:121:a::/64",
        ),
        ("ipv6-prefixes/0", json!("2001:db8:121:a::/64"), v6),
        ("ipv6-prefixes/0", json!("100.121.95.96/28"), v6),
        ("ipv6-prefixes/0", json!("fe80::/80"), v6),
        ("ipv6-prefixes/0", json!(80), "expected a string"),
        (
            "ipv6-prefixes",
            json!("2001:db8::/80"),
            "expected a sequence",
        ),
    ]
}

#[test]
fn addresses_and_prefixes() {
    let untouched = parse(&prefix().to_string()).expect("good");
    for (field, value, allowed) in bad_addresses() {
        let node = check(prefix(), &format!("{PREFIX_ENI}/{field}"), value, allowed);
        others_hold(&node, &untouched, PREFIX_ENI_ID);
        if !field.contains('/') {
            assert_eq!(
                reason(&node, PREFIX_ENI_ID),
                node.unfollowed.refused[0].to_string()
            );
            continue;
        }
        // Refused addresses are not allocated. Nothing else changes.
        let blocks = &node.enis[&EniNumber(1)].blocks;
        assert!(
            blocks.is_subset(&untouched.enis[&EniNumber(1)].blocks) || field == "prefixes/0",
            "{blocks:?}"
        );
        assert!(!blocks.is_empty(), "{field}");
    }
}

#[test]
fn what_has_to_be_there() {
    let cases = [
        ("/apiVersion", "apiVersion", "cilium.io/v2"),
        ("/kind", "kind", "CiliumNode"),
    ];
    for (pointer, path, allowed) in cases {
        let mut document = secondary();
        remove(&mut document, pointer);
        says(&error(&document), path, "missing", allowed);
    }
    let cases = [
        (
            "/metadata/name",
            "metadata.name",
            "the name of a Kubernetes node",
        ),
        (
            "/spec/addresses/0/type",
            "spec.addresses[0].type",
            "InternalIP",
        ),
        (
            "/spec/addresses/0/ip",
            "spec.addresses[0].ip",
            "a unicast IPv4 or IPv6 address",
        ),
    ];
    for (pointer, path, allowed) in cases {
        let mut document = secondary();
        remove(&mut document, pointer);
        let node = refused(&document, path, "missing", allowed);
        assert_eq!(node.enis.len(), 2);
    }
    for (field, allowed) in [
        ("mac", "a unicast MAC address"),
        ("vpc/primary-cidr", "an IPv4 CIDR, /8 to /28"),
    ] {
        let mut document = secondary();
        let pointer = format!("{ENI}/{field}");
        remove(&mut document, &pointer);
        let node = refused(&document, &path_of(&pointer), "missing", allowed);
        assert_eq!(
            reason(&node, ENI_ID),
            node.unfollowed.refused[0].to_string()
        );
    }
}

/// An ENI without reported IPv4 can give IPv6 alone.
#[test]
fn an_eni_without_usable_ipv4_has_what_it_has_of_ipv6() {
    let untouched = parse(&secondary().to_string()).expect("good");
    for (field, allowed) in [
        ("ip", "a unicast IPv4 address"),
        ("subnet/cidr", "an IPv4 CIDR, /16 to /28"),
    ] {
        let mut document = secondary();
        let pointer = format!("{ENI}/{field}");
        remove(&mut document, &pointer);
        let node = refused(&document, &path_of(&pointer), "missing", allowed);
        let blocks = &node.enis[&EniNumber(1)].blocks;
        assert_eq!(blocks.len(), 2, "{blocks:?}");
        assert!(blocks.iter().all(|block| block.addr().is_ipv6()));
        others_hold(&node, &untouched, ENI_ID);
        let ipv4 = json!(["100.120.134.75", "100.120.137.182"]);
        set(&mut document, &format!("{ENI}/addresses"), ipv4);
        let node = refused(&document, &path_of(&pointer), "missing", allowed);
        assert_eq!(
            reason(&node, ENI_ID),
            node.unfollowed.refused[0].to_string()
        );
    }
}

#[test]
fn an_excluded_entry_needs_no_more_than_its_id() {
    let tags = json!({"cilium": "off"});
    for entry in [
        json!({"tags": tags}),
        json!({"tags": tags, "mac": 7, "addresses": {}, "number": "x"}),
        json!({"tags": tags, "number": 0, "ip": "x", "mac": ""}),
    ] {
        let mut document = secondary();
        set(&mut document, "/status/eni/enis/eni-card1", entry);
        let node = parse(&document.to_string()).expect("good");
        assert_eq!(node.unfollowed.refused, []);
        assert_eq!(node.enis.len(), 2);
        let expected = "its tags match spec.eni.exclude-interface-tags (cilium=off)";
        assert_eq!(reason(&node, "eni-card1"), expected);
    }
}

/// A rule that cannot be read may exclude the ENI: it is not taken by mistake.
#[test]
fn an_unreadable_rule_of_exclusion_is_none_that_excludes_nothing() {
    let tagged = |document: &mut Value| {
        let tags = json!({"cilium": "off"});
        set(document, &format!("{ENI}/tags"), tags);
    };
    for (pointer, value, enis) in [
        ("first-interface-index", json!("x"), 0),
        ("use-primary-address", json!("x"), 1),
        ("exclude-interface-tags", json!("x"), 1),
        ("exclude-interface-tags/cilium", json!(["off"]), 1),
    ] {
        let mut document = secondary();
        if pointer.starts_with("exclude") {
            tagged(&mut document);
        }
        set(&mut document, &format!("/spec/eni/{pointer}"), value);
        let (_, node) = problem(&document);
        assert_eq!(node.enis.len(), enis, "{pointer}");
        assert_eq!(
            reason(&node, ENI_ID),
            node.unfollowed.refused[0].to_string()
        );
    }
}
