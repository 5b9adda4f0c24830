//! `towpath masq`: what the decision looks at, each with where it comes from.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::layout::DIRECT_POOL;

use crate::masq::{masquerade, scene, snat};

const NATIVE: &str = "10.77.0.0/16";

/// The row of a list in which a field has this value.
#[track_caller]
fn row<'a>(rows: &'a Value, field: &str, value: &Value) -> &'a Value {
    let list = rows.as_array().unwrap();
    let row = list.iter().find(|row| row[field] == *value);
    row.unwrap_or_else(|| panic!("no {field} {value} in {rows}"))
}

#[test]
fn inputs_are_told_with_their_source() {
    let agent = json!({"enabled": true, "path": "/nowhere"});
    let settings = json!({"native-routing-cidrs": [NATIVE], "ip-masq-agent": agent});
    let (fabric, _pods) = scene(masquerade(&settings));
    let view: Value = fabric.agent.cli_json(&fabric.node, &["masq"]).unwrap();
    let settings = [
        &view["ipv4"],
        &view["ipv6"],
        &view["external"],
        &view["metadata"],
    ];
    assert_eq!(
        settings,
        [
            &json!(true),
            &json!(true),
            &json!("auto"),
            &json!("primary")
        ]
    );
    for (cidr, class, source) in [
        ("10.0.0.0/16", "vpc", "eni-"),
        (NATIVE, "native", "native-routing-cidrs"),
        ("192.168.0.0/16", "masq-agent", "standard list"),
        ("169.254.0.0/16", "link-local", ""),
        ("169.254.169.254/32", "metadata", ""),
        ("fd00:ec2::254/128", "metadata", ""),
    ] {
        let row = row(&view["exempt"], "cidr", &json!(cidr));
        assert_eq!(row["class"], class, "{row}");
        let shown = row["source"].as_str().unwrap();
        assert!(!shown.is_empty() && shown.contains(source), "{row}");
    }
    let direct = row(&view["pools"], "name", &json!(DIRECT_POOL));
    assert!(!direct["cidrs"].as_array().unwrap().is_empty(), "{direct}");
    assert!(direct["policy"].to_string().contains("true"), "{direct}");
    for eni in [0, 1] {
        let row = row(&view["enis"], "number", &json!(eni));
        for (family, of) in [(Family::V4, &row["ipv4"]), (Family::V6, &row["ipv6"])] {
            assert_eq!(of["address"], json!(snat(&fabric, eni, family)), "{row}");
            assert_eq!(of["external"], eni, "{row}");
            assert!(!of["why"].as_str().unwrap().is_empty(), "{row}");
        }
    }
    // The human-readable output has the same facts.
    let output = fabric.agent.cli(&fabric.node, &["masq"]).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for fact in [
        NATIVE,
        DIRECT_POOL,
        "169.254.169.254/32",
        "native-routing-cidrs",
    ] {
        assert!(text.contains(fact), "{fact} is not in\n{text}");
    }
    fabric.finish().unwrap();
}
