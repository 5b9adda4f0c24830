//! Invalid combinations of fields.

use api::ids::EniNumber;
use serde_json::{Value, json};

use super::support::{
    ENI, PREFIX_ENI, PRIMARY, SECONDARY_YAML, parse, prefix, problem, reason, secondary, set,
};

const ENI_PATH: &str = "status.eni.enis.eni-0e979576c285fd4d5";
const PRIMARY_PATH: &str = "status.eni.enis.eni-0a1f6e2d3c4b5a697";

/// The document with prefixes and a third ENI, of number 2.
fn three() -> (Value, &'static str) {
    let mut document = prefix();
    let pointer = "/status/eni/enis/eni-3";
    let eni = json!({
        "ip": "100.121.90.5", "mac": "0a:11:22:33:44:67", "number": 2,
        "subnet": {"cidr": "100.121.64.0/18"}, "vpc": {"primary-cidr": "10.0.0.0/16"},
        "addresses": [], "prefixes": [], "ipv6-prefixes": [],
    });
    set(&mut document, pointer, eni);
    parse(&document.to_string()).expect("good before it is changed");
    (document, pointer)
}

#[test]
fn of_two_entries_with_one_device_index_one_serves() {
    for excluded in [false, true] {
        let mut document = secondary();
        let mut entry = document.pointer(ENI).cloned().unwrap();
        let object = entry.as_object_mut().unwrap();
        object.insert("id".to_owned(), json!("eni-card1"));
        object.insert("ip".to_owned(), json!("100.120.9.9"));
        object.insert("mac".to_owned(), json!("0a:11:22:33:44:99"));
        object.insert("addresses".to_owned(), json!(["100.120.9.10"]));
        if excluded {
            object.insert("tags".to_owned(), json!({"cilium": "off"}));
        }
        set(&mut document, "/status/eni/enis/eni-card1", entry);
        let node = parse(&document.to_string()).unwrap();
        assert_eq!(node.unfollowed.refused, []);
        assert_eq!(node.enis[&EniNumber(1)].id, "eni-0e979576c285fd4d5");
        if excluded {
            assert!(node.enis[&EniNumber(2)].excluded.is_some());
        } else {
            let text = reason(&node, "eni-card1");
            assert!(
                text.starts_with(
                    "unknown card: status.eni.enis.eni-card1.number: \"1\" is that of"
                ),
                "{text}"
            );
            assert!(text.contains("eni-0e979576c285fd4d5 too"), "{text}");
        }
    }
}

#[test]
fn macs_are_each_one_eni_s() {
    let mut document = secondary();
    // In the other case: what the kernel reports is lower case.
    set(
        &mut document,
        &format!("{ENI}/mac"),
        json!("0A:11:22:33:44:54"),
    );
    let node = parse(&document.to_string()).unwrap();
    assert_eq!(node.enis.len(), 1);
    assert_eq!(
        reason(&node, "eni-0e979576c285fd4d5"),
        format!(
            "{ENI_PATH}.mac: \"0a:11:22:33:44:54\" is refused; allowed: one that no other ENI \
             has; eni-0a1f6e2d3c4b5a697 has it"
        )
    );
}

#[test]
fn an_address_stands_once() {
    let mut document = secondary();
    set(
        &mut document,
        &format!("{ENI}/addresses/-"),
        json!("100.120.137.182"),
    );
    assert_eq!(
        problem(&document).0,
        format!(
            "{ENI_PATH}.addresses[5]: 100.120.137.182 is already at addresses[1]; each is \
             allowed once"
        )
    );
    let mut document = secondary();
    set(
        &mut document,
        &format!("{PRIMARY}/addresses/-"),
        json!("100.120.134.75"),
    );
    assert_eq!(
        problem(&document).0,
        format!(
            "{ENI_PATH}.addresses[0]: \"100.120.134.75/32\" is refused; allowed: clear of \
             100.120.134.75/32, which is {PRIMARY_PATH}.addresses[3]"
        )
    );
}

#[test]
fn primary_addresses_are_nobody_else_s() {
    let mut document = secondary();
    set(&mut document, &format!("{ENI}/ip"), json!("100.120.134.10"));
    let (text, node) = problem(&document);
    assert!(
        text.contains(&format!("which is {PRIMARY_PATH}.ip")),
        "{text}"
    );
    assert_eq!(reason(&node, "eni-0e979576c285fd4d5"), text);

    let mut document = secondary();
    set(
        &mut document,
        &format!("{PRIMARY}/addresses/-"),
        json!("100.120.133.9"),
    );
    let (text, node) = problem(&document);
    assert!(
        text.starts_with(&format!("{PRIMARY_PATH}.addresses[3]: ")),
        "{text}"
    );
    assert!(text.contains(&format!("which is {ENI_PATH}.ip")), "{text}");
    assert_eq!(node.enis.len(), 2);

    let (mut document, _) = three();
    set(
        &mut document,
        &format!("{PREFIX_ENI}/ip"),
        json!("100.121.95.97"),
    );
    let (text, _) = problem(&document);
    assert!(
        text.starts_with("status.eni.enis.eni-0f05f2edf01f99001.prefixes[0]: "),
        "{text}"
    );
    assert!(text.contains("clear of 100.121.95.97/32"), "{text}");
}

#[test]
fn prefixes_do_not_overlap() {
    for (field, value, inner) in [
        ("prefixes", "100.121.95.96/28", "100.121.95.96/28"),
        ("addresses", "100.121.95.103", "100.121.95.103/32"),
        (
            "ipv6-prefixes",
            "2001:db8:121:a:f::/80",
            "2001:db8:121:a:f::/80",
        ),
        (
            "addresses",
            "2001:db8:121:a:f::7",
            "2001:db8:121:a:f::7/128",
        ),
    ] {
        let (mut document, pointer) = three();
        set(&mut document, &format!("{pointer}/{field}/-"), json!(value));
        let (text, _) = problem(&document);
        assert!(
            text.contains(&format!("\"{inner}\" is refused; allowed: clear of ")),
            "{text}"
        );
        assert!(
            text.contains(&format!("status.eni.enis.eni-3.{field}[0]")),
            "{text}"
        );
        assert!(
            text.contains("status.eni.enis.eni-0f05f2edf01f99001."),
            "{text}"
        );
    }
    let mut document = prefix();
    set(
        &mut document,
        &format!("{PREFIX_ENI}/prefixes/-"),
        json!("100.121.95.96/28"),
    );
    let (text, _) = problem(&document);
    assert!(
        text.contains("prefixes[1]: ") && text.contains("prefixes[0]"),
        "{text}"
    );
}

#[test]
fn an_eni_s_key_stands_once_and_is_not_empty() {
    let twice = SECONDARY_YAML.replace(
        "      eni-0a1f6e2d3c4b5a697:\n",
        "      eni-0e979576c285fd4d5:\n",
    );
    let node = parse(&twice).unwrap();
    let text = reason(&node, "eni-0e979576c285fd4d5");
    assert_eq!(
        text,
        format!(
            "{ENI_PATH}: the key \"eni-0e979576c285fd4d5\" is a duplicate; each is allowed once"
        )
    );

    let mut document = secondary();
    let eni = document.pointer(ENI).cloned().unwrap();
    set(&mut document, "/status/eni/enis", json!({"": eni}));
    set(&mut document, "/status/eni/enis//id", json!(""));
    let (text, _) = problem(&document);
    assert!(
        text.starts_with("status.eni.enis: missing; allowed: the ENI's id as key"),
        "{text}"
    );
}

#[test]
fn every_problem_is_told() {
    let mut document = secondary();
    set(&mut document, &format!("{ENI}/mac"), json!("x"));
    set(&mut document, &format!("{ENI}/subnet/cidr"), json!("y"));
    set(&mut document, &format!("{PRIMARY}/number"), json!(-99));
    let node = parse(&document.to_string()).unwrap();
    let mut paths: Vec<&str> = node
        .unfollowed
        .refused
        .iter()
        .map(|p| p.path.as_str())
        .collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        [
            &format!("{PRIMARY_PATH}.number"),
            &format!("{ENI_PATH}.mac"),
            &format!("{ENI_PATH}.subnet.cidr"),
        ]
    );
}
