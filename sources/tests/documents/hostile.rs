//! Texts that are no documents at all, or are made to hurt.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::{
    ENI, PREFIX_YAML, SECONDARY_JSON, SECONDARY_YAML, parse, reason, secondary, set,
};

/// Longest that any text of a few MiB may take, by far more than it needs.
const TIME_LIMIT: Duration = Duration::from_secs(20);

fn refused(text: &str) -> String {
    let start = Instant::now();
    let error = parse(text).expect_err("must be refused").to_string();
    assert!(start.elapsed() < TIME_LIMIT, "{:?}", start.elapsed());
    assert!(error.len() < 4096, "{} bytes of message", error.len());
    error
}

#[test]
fn every_truncation_of_json_is_refused() {
    let text = SECONDARY_JSON.trim_end();
    for end in 0..text.len() {
        let error = refused(&text[..end]);
        if end > 0 {
            assert!(error.contains("EOF while parsing"), "{end}: {error}");
            assert!(error.contains(" at line "), "{end}: {error}");
        } else {
            assert!(error.contains("apiVersion: missing"), "{error}");
        }
    }
}

#[test]
fn no_truncation_of_yaml_panics() {
    for text in [SECONDARY_YAML, PREFIX_YAML] {
        for end in 0..text.len() {
            drop(parse(&text[..end]));
        }
    }
}

#[test]
fn an_alias_bomb_is_refused() {
    // Nine levels of nine aliases: 3.9e8 strings when followed.
    let mut text = String::from("l0: &l0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let alias = format!("*l{}", level - 1);
        let list = vec![alias; 9].join(", ");
        writeln!(text, "l{level}: &l{level} [{list}]").unwrap();
    }
    // In an unread field the aliases are not expanded.
    let error = refused(&text);
    assert!(error.starts_with("apiVersion: missing"), "{error}");
    // In a field that is read they are, up to the reader's limit.
    text.push_str("status:\n  eni:\n    enis:\n      eni-1:\n        addresses: *l9\n");
    let error = refused(&text);
    assert!(
        error.starts_with("status.eni.enis.eni-1.addresses"),
        "{error}"
    );
}

#[test]
fn a_flat_alias_bomb_is_bounded() {
    let head = "apiVersion: cilium.io/v2\nkind: CiliumNode\nmetadata: {name: n1}\n";
    let mut text = format!("{head}big: &big {{");
    for i in 0..1000 {
        write!(text, "eni-{i}: {{number: 1}}, ").unwrap();
    }
    text.push_str("}\nspec: {ipam: {pool: *big}}\nstatus: {eni: {enis: *big}}\n");
    let start = Instant::now();
    let node = parse(&text).unwrap();
    assert!(start.elapsed() < TIME_LIMIT, "{:?}", start.elapsed());
    assert_eq!((node.enis.len(), node.others.len()), (0, 1000));
    let last = node.unfollowed.refused.last().unwrap().to_string();
    assert!(last.ends_with(" more problems"), "{last}");
}

#[test]
fn an_alias_of_itself_is_refused() {
    let error = refused("status: &s\n  eni: *s\nspec: &p\n  addresses: [*p]\n");
    assert!(
        error.contains("spec") || error.contains("apiVersion"),
        "{error}"
    );
}

#[test]
fn depth_is_bounded() {
    let deep = 100_000;
    refused(&format!("{{\"x\": {}", "[".repeat(deep)));
    refused(&format!("x: {}", "[".repeat(10_000)));
    let error = refused(&format!("x: {}", "[{".repeat(1 << 20)));
    assert!(
        error.contains("2097152 opening brackets; allowed in YAML: at most 16384"),
        "{error}"
    );
    refused(&format!("x: {}{}", "[".repeat(10_000), "]".repeat(10_000)));
    let mut indented = String::new();
    for level in 0..1000 {
        writeln!(indented, "{}k:", " ".repeat(level)).unwrap();
    }
    refused(&indented);
}

#[test]
fn the_brackets_of_yaml_are_bounded() {
    let flat = |count: usize| format!("x:\n{}", "- {}\n".repeat(count));
    let error = refused(&flat(16_384));
    assert!(error.starts_with("apiVersion: missing"), "{error}");
    let error = refused(&flat(16_385));
    assert!(
        error.starts_with("document: 16385 opening brackets"),
        "{error}"
    );
    let json = format!("{{\"x\": [{}{{}}]}}", "{},".repeat(16_385));
    let error = refused(&json);
    assert!(error.starts_with("apiVersion: missing"), "{error}");
}

#[test]
fn a_large_document_is_read() {
    let mut text = SECONDARY_YAML.replace(
        "        security-groups: [sg-0c3]\n        tags:",
        "        tags:",
    );
    text.push_str("        addresses-of-others:\n");
    for i in 0..100_000 {
        writeln!(
            text,
            "          - 10.{}.{}.{}",
            i >> 16,
            (i >> 8) & 255,
            i & 255
        )
        .unwrap();
    }
    let start = Instant::now();
    drop(parse(&text));
    assert!(start.elapsed() < TIME_LIMIT);
}

#[test]
fn very_many_addresses_are_checked_in_time() {
    let list: Vec<String> = (2..60_000_u32)
        .map(|i| format!("\"100.120.{}.{}\"", i >> 8, i & 255))
        .collect();
    let text = format!(
        r#"{{"apiVersion":"cilium.io/v2","kind":"CiliumNode","metadata":{{"name":"n"}},
        "status":{{"eni":{{"enis":{{"eni-1":{{"ip":"100.120.250.1","mac":"0a:11:22:33:44:55",
        "subnet":{{"cidr":"100.120.0.0/16"}},"vpc":{{"primary-cidr":"10.0.0.0/16"}},
        "addresses":[{}]}}}}}}}}}}"#,
        list.join(",")
    );
    let start = Instant::now();
    let node = parse(&text).unwrap();
    assert_eq!(node.enis.values().next().unwrap().blocks.len(), 59_998);
    assert!(start.elapsed() < TIME_LIMIT);
}

/// Where very many fields are wrong, with what, and what is lost with them.
fn crowds() -> [(&'static str, Value, &'static str); 6] {
    let addresses = (0..300).map(|i| (format!("10.0.{}.{}", i >> 8, i & 255), json!("eni")));
    let cidrs = json!({"pool": "mars", "cidrs": many(&json!({"a": 7}))});
    [
        ("/spec/addresses", many(&json!(7)), "spec.addresses: "),
        (
            "/spec/ipam/pool",
            Value::Object(addresses.collect()),
            "spec.ipam.pool: ",
        ),
        (
            "/spec/ipam/pools",
            json!({"allocated": many(&json!(7))}),
            "spec.ipam.pools.allocated: ",
        ),
        (
            "/spec/ipam/pools",
            json!({"allocated": [cidrs]}),
            "spec.ipam.pools.allocated[0].cidrs: ",
        ),
        (
            "/spec/ipam/pools",
            json!({"allocated": many(&json!({"pool": [7]}))}),
            "spec.ipam.pools.allocated: ",
        ),
        (
            "/spec/ipam/static-ip-tags",
            (0..300).map(|i| (i.to_string(), json!([7]))).collect(),
            "spec.ipam.static-ip-tags: ",
        ),
    ]
}

fn many(value: &Value) -> Value {
    Value::Array(vec![value.clone(); 300])
}

/// Beyond some, wrong fields are not taken out one by one: what they are in goes, and nothing else.
#[test]
fn very_many_wrong_fields_cost_what_they_are_in_and_nothing_else() {
    let untouched = parse(SECONDARY_JSON).unwrap();
    for (pointer, value, lost) in crowds() {
        let mut document = secondary();
        set(&mut document, pointer, value);
        let yaml = serde_yaml_ng::to_string(&document).unwrap();
        for text in [document.to_string(), yaml] {
            let start = Instant::now();
            let node = parse(&text).unwrap_or_else(|error| panic!("{pointer}: {error}"));
            assert!(start.elapsed() < TIME_LIMIT, "{:?}", start.elapsed());
            assert_eq!(node.enis, untouched.enis, "{pointer}");
            if pointer != "/spec/addresses" {
                assert_eq!(node.addresses, untouched.addresses, "{pointer}");
            }
            let mut refused = node.unfollowed.refused.iter().map(ToString::to_string);
            assert!(
                refused.any(|reason| reason.starts_with(lost)),
                "{:?}",
                node.unfollowed.refused
            );
        }
    }
    let mut document = secondary();
    set(
        &mut document,
        &format!("{ENI}/addresses"),
        many(&json!([7])),
    );
    let node = parse(&document.to_string()).unwrap();
    let of_entry = reason(&node, "eni-0e979576c285fd4d5");
    assert!(
        of_entry.contains(".addresses: too much of it cannot be read, such as "),
        "{of_entry}"
    );
}

#[test]
fn what_only_yaml_can_say_costs_its_entry_alone() {
    for value in [
        "99999999999999999999999999",
        "-99999999999999999999999999",
        "[1]\n        unknown: !tag {a: 1}",
        "[1]\n        unknown: !tag 7",
    ] {
        let text = SECONDARY_YAML.replace("number: 1\n", &format!("number: {value}\n"));
        let node = parse(&text).unwrap_or_else(|error| panic!("{value}: {error}"));
        assert_eq!((node.enis.len(), node.others.len()), (1, 1), "{value}");
    }
}

#[test]
fn what_is_no_document_is_refused() {
    for text in [
        "",
        "\0",
        "{}",
        "[]",
        "{",
        "- a",
        "just words",
        "%YAML 9.9\n---\n",
        "a: b: c",
        "\t- x",
        "!!binary x",
        "? [a]\n: b",
        "\u{feff}",
        "--- a\n--- b\n",
    ] {
        refused(text);
    }
    let two = format!("{SECONDARY_YAML}\n---\n{PREFIX_YAML}");
    assert!(refused(&two).contains("more than one document"), "{two}");
}

/// Replacements for one place of a text.
fn damage() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "\\PC{0,8}",
        prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ":",
            ": ",
            "- ",
            ",",
            "\"",
            "'",
            "&a ",
            "*a",
            "|",
            ">",
            "!",
            "%",
            "\n",
            "\n ",
            "\t",
            "null",
            "~",
            "-1",
            "1e999",
            "0x10",
            "18446744073709551616",
            "/",
            "/0",
            "/129",
            "::",
            "255.255.255.255",
            "\0",
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn no_damage_makes_it_panic(
        which in 0..3_usize,
        places in prop::collection::vec((any::<prop::sample::Index>(), 0..24_usize, damage()), 1..5),
    ) {
        let fixture = [SECONDARY_YAML, SECONDARY_JSON, PREFIX_YAML][which];
        let mut text: Vec<char> = fixture.chars().collect();
        for (place, length, by) in places {
            let start = place.index(text.len() + 1);
            let end = (start + length).min(text.len());
            text.splice(start..end, by.chars());
        }
        let text: String = text.into_iter().collect();
        let problems = match parse(&text) {
            Ok(node) => node.unfollowed.refused,
            Err(error) => error.problems().to_vec(),
        };
        for problem in problems {
            prop_assert!(!problem.path.is_empty() && !problem.message.is_empty());
        }
    }
}
