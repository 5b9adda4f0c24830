//! One entry that is garbage changes nothing of the others.

use loader::intent::Node;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::{ENI, PRIMARY, parse, secondary, set};

/// Bad values for an entry or for one of its fields.
fn garbage() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!({})),
        Just(json!([])),
        Just(json!([[null]])),
        Just(json!({"mac": 1, "number": "x", "addresses": {}, "vpc": []})),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|float| json!(float)),
        "\\PC{0,12}".prop_map(Value::from),
        prop::collection::vec("\\PC{0,6}", 0..4).prop_map(Value::from),
    ]
}

fn entries(node: &Node, except: &str) -> Vec<String> {
    let placed = node.enis.values().filter(|eni| eni.id != except);
    placed.map(|eni| format!("{eni:?}")).collect()
}

/// Fields of an entry; none is the entry itself.
const FIELDS: [&str; 14] = [
    "",
    "/id",
    "/ip",
    "/mac",
    "/number",
    "/subnet",
    "/subnet/cidr",
    "/vpc",
    "/vpc/primary-cidr",
    "/vpc/cidrs",
    "/addresses",
    "/prefixes",
    "/ipv6-prefixes",
    "/public-ip",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn a_bad_entry_costs_itself_alone(
        field in prop::sample::select(FIELDS.to_vec()),
        value in garbage(),
        of_primary in any::<bool>(),
        yaml in any::<bool>(),
    ) {
        let untouched = parse(&secondary().to_string()).unwrap();
        let mut document = secondary();
        let pointer = if of_primary { PRIMARY } else { ENI };
        set(&mut document, &format!("{pointer}{field}"), value);
        let text = if yaml {
            serde_yaml_ng::to_string(&document).unwrap()
        } else {
            document.to_string()
        };
        let node = parse(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let id = pointer.rsplit('/').next().unwrap();
        prop_assert_eq!(entries(&node, id), entries(&untouched, id));
        prop_assert_eq!(&node.addresses, &untouched.addresses);
        let listed = node.enis.values().any(|eni| eni.id == id);
        prop_assert!(listed || node.others.iter().any(|other| other.id == id));
    }

    #[test]
    fn a_bad_element_costs_itself_alone(
        list in prop::sample::select(vec!["addresses", "vpc/cidrs"]),
        value in garbage(),
    ) {
        let untouched = parse(&secondary().to_string()).unwrap();
        let mut document = secondary();
        set(&mut document, &format!("{ENI}/{list}/-"), value);
        let node = parse(&document.to_string()).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(entries(&node, ""), entries(&untouched, ""));
        prop_assert_eq!(node.unfollowed.refused.len(), 1);
    }

    #[test]
    fn a_bad_entry_of_the_spec_costs_itself_alone(
        pointer in prop::sample::select(vec![
            "/spec/addresses/-",
            "/spec/ipam/pools/allocated/-",
            "/spec/ipam/pools/allocated/0/cidrs/-",
        ]),
        value in garbage(),
    ) {
        let mut document = secondary();
        let good = json!({"pool": "mars", "cidrs": ["172.30.0.0/28"]});
        set(&mut document, "/spec/ipam/pools", json!({"allocated": [good]}));
        let untouched = parse(&document.to_string()).unwrap();
        set(&mut document, pointer, value);
        let node = parse(&document.to_string()).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(entries(&node, ""), entries(&untouched, ""));
        prop_assert_eq!(&node.addresses, &untouched.addresses);
        prop_assert_eq!(&node.pools, &untouched.pools);
        prop_assert_eq!(node.allocated.first(), untouched.allocated.first());
    }
}
