//! Reading of a `CiliumNode`: each field by itself.

use serde_json::json;

use super::*;

fn document() -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode",
        "metadata": {
            "name": "node-a", "uid": "u1", "resourceVersion": "7",
            "annotations": {"ipam.cilium.io/ignore": "false"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Node", "uid": "no"},
                {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "n1"}
            ]
        },
        "spec": {
            "instance-id": "i-1",
            "eni": {
                "instance-type": "m5.large", "vpc-id": "vpc-1", "availability-zone": "a",
                "node-subnet-id": "subnet-0", "subnet-ids": ["subnet-1", "subnet-2"],
                "subnet-tags": {"usage": "pods"}, "security-groups": ["sg-1"],
                "security-group-tags": {"k": "v"}, "exclude-interface-tags": {"cilium": "off"},
                "first-interface-index": 1, "disable-prefix-delegation": true,
                "use-primary-address": true, "delete-on-termination": false
            },
            "ipam": {
                "pre-allocate": 5, "min-allocate": 10, "max-allocate": 40, "max-above-watermark": 2,
                "static-ip-tags": {"pool": "egress"},
                "pool": {"10.0.0.5": {"resource": "eni-1"}},
                "pools": {
                    "requested": [
                        {"pool": "default", "needed": {"ipv4-addrs": 9, "ipv6-addrs": 3}},
                        {"pool": "blue", "needed": {"ipv4-addrs": 4}}
                    ],
                    "allocated": [
                        {"pool": "default", "cidrs": ["10.0.0.16/28", "10.0.0.5/32"]},
                        {"pool": "blue", "cidrs": ["10.9.0.0/24"]}
                    ]
                }
            }
        },
        "status": {"eni": {"enis": {"eni-1": {}, "eni-2": {}}}, "ipam": {"used": {}}}
    })
}

fn set(object: &mut Value, pointer: &str, value: Value) {
    *object.pointer_mut(pointer).unwrap() = value;
}

#[test]
fn every_field_is_read() {
    let node = NodeDocument::read(&document());
    assert_eq!(node.problems, Problems::default());
    let meta = &node.meta;
    assert_eq!((meta.name.as_str(), meta.uid.as_str()), ("node-a", "u1"));
    assert_eq!(meta.version, "7");
    assert_eq!(
        (meta.owner.as_deref(), meta.is_ignored),
        (Some("n1"), false)
    );
    assert_eq!(node.instance.id.as_deref(), Some("i-1"));
    assert_eq!(node.instance.kind.as_deref(), Some("m5.large"));
    assert_eq!(node.place.subnet_ids.len(), 2);
    assert_eq!(node.place.own_subnet.as_deref(), Some("subnet-0"));
    let rules = &node.rules;
    assert_eq!((rules.first_index, rules.prefixes), (1, false));
    assert!(rules.use_primary && !rules.delete_on_termination);
    let bounds = Bounds {
        pre: 5,
        min: 10,
        max: 40,
        above: 2,
    };
    assert_eq!(node.bounds, bounds);
    assert!(node.demand.is_requested());
    assert_eq!(
        node.demand.requested["default"],
        Needed { ipv4: 9, ipv6: 3 }
    );
    assert_eq!(node.demand.requested["blue"], Needed { ipv4: 4, ipv6: 0 });
    assert_eq!(node.allocated["default"].len(), 2);
    assert_eq!((node.flat, node.published.len()), (1, 2));
}

#[test]
fn an_empty_object_is_a_node_of_which_nothing_is_known() {
    for object in [
        json!({}),
        json!(null),
        json!([]),
        json!({"spec": 7, "status": "x"}),
    ] {
        let node = NodeDocument::read(&object);
        assert_eq!(node, NodeDocument::default(), "{object}");
        assert!(node.rules.prefixes && node.rules.delete_on_termination);
    }
    // An id that is empty is missing, also where the deprecated field has one.
    let mut object = document();
    set(&mut object, "/spec/instance-id", json!(""));
    assert_eq!(NodeDocument::read(&object).instance.id, None);
    object["spec"]["eni"]["instance-id"] = json!("i-old");
    let node = NodeDocument::read(&object);
    assert_eq!(node.instance.id.as_deref(), Some("i-old"));
}

#[test]
fn pod_cidrs_are_read_and_a_bad_one_costs_itself() {
    let mut object = document();
    object["spec"]["ipam"]["podCIDRs"] = json!(["10.1.0.7/24", "all"]);
    let node = NodeDocument::read(&object);
    assert_eq!(node.pod_cidrs, ["10.1.0.0/24".parse().unwrap()].into());
    let problems: Vec<String> = node
        .problems
        .others
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        problems,
        ["spec.ipam.podCIDRs: \"all\" is refused: expected CIDRs"]
    );
}

#[test]
fn used_addresses_make_a_request_stale() {
    let mut object = document();
    object["status"]["ipam"]["used"] = json!({"10.0.0.5": {"owner": "a/b"}, "no address": {}});
    let demand = NodeDocument::read(&object).demand;
    assert_eq!((demand.used, demand.is_requested()), (1, false));
    object["spec"]["ipam"]["pools"]["requested"] = json!([{"pool": "blue"}]);
    object["status"]["ipam"]["used"] = json!(null);
    let demand = NodeDocument::read(&object).demand;
    assert!(
        !demand.is_requested(),
        "another pool says nothing of this one"
    );
}

/// Pointers, the path that is named, and if the field is a rule.
const FIELDS: [(&str, &str, bool); 20] = [
    ("/spec/eni/vpc-id", "spec.eni.vpc-id", true),
    (
        "/spec/eni/availability-zone",
        "spec.eni.availability-zone",
        true,
    ),
    ("/spec/eni/node-subnet-id", "spec.eni.node-subnet-id", true),
    ("/spec/eni/subnet-ids", "spec.eni.subnet-ids", true),
    ("/spec/eni/subnet-ids/1", "spec.eni.subnet-ids[1]", true),
    (
        "/spec/eni/subnet-tags/usage",
        "spec.eni.subnet-tags.usage",
        true,
    ),
    (
        "/spec/eni/security-groups/0",
        "spec.eni.security-groups[0]",
        true,
    ),
    (
        "/spec/eni/security-group-tags",
        "spec.eni.security-group-tags",
        true,
    ),
    (
        "/spec/eni/exclude-interface-tags",
        "spec.eni.exclude-interface-tags",
        true,
    ),
    (
        "/spec/eni/first-interface-index",
        "spec.eni.first-interface-index",
        true,
    ),
    (
        "/spec/eni/use-primary-address",
        "spec.eni.use-primary-address",
        true,
    ),
    ("/spec/instance-id", "spec.instance-id", false),
    ("/spec/eni/instance-type", "spec.eni.instance-type", false),
    ("/spec/ipam/min-allocate", "spec.ipam.min-allocate", false),
    ("/spec/ipam/pre-allocate", "spec.ipam.pre-allocate", false),
    (
        "/spec/ipam/pools/requested",
        "spec.ipam.pools.requested",
        false,
    ),
    (
        "/spec/ipam/pools/requested/0/pool",
        "spec.ipam.pools.requested[0].pool",
        false,
    ),
    (
        "/spec/ipam/pools/requested/1/needed/ipv4-addrs",
        "spec.ipam.pools.requested[1].needed.ipv4-addrs",
        false,
    ),
    (
        "/spec/ipam/pools/allocated/0/cidrs/1",
        "spec.ipam.pools.allocated[0].cidrs[1]",
        false,
    ),
    ("/status/ipam/used", "status.ipam.used", false),
];

#[test]
fn a_bad_field_is_named_and_costs_itself() {
    for (pointer, path, is_rule) in FIELDS {
        for bad in [json!(-1.5), json!({"a": [1]}), json!([[]])] {
            let mut object = document();
            set(&mut object, pointer, bad.clone());
            if object == document() || (pointer.ends_with("used") && bad.is_object()) {
                continue;
            }
            let node = NodeDocument::read(&object);
            let Problems { of_rules, others } = &node.problems;
            let (named, others) = if is_rule {
                (of_rules, others)
            } else {
                (others, of_rules)
            };
            assert!(
                named.iter().any(|problem| problem.path.starts_with(path)),
                "{pointer} {bad}: {named:?}"
            );
            assert!(named.iter().all(|problem| problem.path.starts_with(path)));
            assert_eq!(others, &[], "{pointer} {bad}");
            assert_eq!((node.meta.uid.as_str(), node.published.len()), ("u1", 2));
        }
    }
    let mut object = document();
    set(
        &mut object,
        "/spec/ipam/max-allocate",
        json!("x".repeat(1000)),
    );
    let problems = NodeDocument::read(&object).problems.others;
    let problem = problems[0].to_string();
    assert!(
        problem.starts_with("spec.ipam.max-allocate: \"xxx"),
        "{problem}"
    );
    assert!(
        problem.ends_with("… is refused: expected a number from 0 to 4294967295"),
        "{problem}"
    );
    assert!(problem.len() < 200, "{problem}");
}
