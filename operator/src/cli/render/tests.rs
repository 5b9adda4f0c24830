//! Every table as people see it, and the keys that programs read.

use std::collections::BTreeMap;

use fleet::PlainView;
use serde::Serialize;
use serde_json::Value;

use super::*;

/// The width of a small terminal.
const WIDTH: usize = 80;
const PLAIN: Paint = Paint(false);

fn node() -> NodeView {
    NodeView {
        name: "ip-10-0-1-20".to_owned(),
        instance: Some("i-0123456789abcdef0".to_owned()),
        instance_type: Some("m5.large".to_owned()),
        addresses: 8,
        missing: 0,
        waiting_pods: 0,
        enis: 1,
        enis_most: Some(3),
        step: None,
        obstacle: None,
    }
}

fn held_up() -> NodeView {
    NodeView {
        name: "n2".to_owned(),
        instance: None,
        instance_type: None,
        addresses: 0,
        missing: 9,
        enis: 0,
        enis_most: None,
        step: Some("a step".to_owned()),
        obstacle: Some(refusal()),
        ..node()
    }
}

fn refusal() -> ObstacleView {
    ObstacleView {
        reason: "Denied".to_owned(),
        text: "a right\nis missing".to_owned(),
        next_try: Some("12:00".to_owned()),
    }
}

fn why_view() -> WhyView {
    WhyView {
        node: node(),
        need: Some("deficit".to_owned()),
        is_busy: true,
        obstacles: vec![refusal()],
        problems: vec!["spec.eni: bad".to_owned()],
        findings: vec!["two groups".to_owned()],
        enis: BTreeMap::from([("eni-1".to_owned(), "published".to_owned())]),
        write_fault: Some("forbidden".to_owned()),
    }
}

fn subnet() -> SubnetView {
    SubnetView {
        id: "subnet-0123456789abcdef0".to_owned(),
        zone: "eu-central-1a".to_owned(),
        room: 4091,
        lasts_seconds: Some(7_250),
        refused: BTreeMap::new(),
    }
}

fn refusing() -> SubnetView {
    SubnetView {
        id: "subnet-2".to_owned(),
        lasts_seconds: None,
        refused: BTreeMap::from([("Prefix".to_owned(), "12:15".to_owned())]),
        ..subnet()
    }
}

fn pool() -> PoolView {
    PoolView {
        name: "default".to_owned(),
        nodes: 2,
        enis: 3,
        addresses: 24,
        wanted: 20,
        plain: None,
        faults: Vec::new(),
    }
}

fn plain_pool() -> PoolView {
    let ipv4 = SpaceView {
        blocks: 256,
        taken: 12,
    };
    PoolView {
        name: "blue".to_owned(),
        plain: Some(PlainView {
            ipv4: Some(ipv4),
            ipv6: None,
            short_nodes: 1,
            orphans: BTreeMap::from([("10.0.0.0/28".to_owned(), vec!["n1".to_owned()])]),
            is_deleted: false,
        }),
        faults: vec!["one".to_owned(), "two".to_owned()],
        ..pool()
    }
}

fn budget() -> Allowance {
    Allowance {
        action: "ModifyNetworkInterfaceAttribute".to_owned(),
        burst: 80.0,
        per_second: 16.0,
        factor: 0.5,
        throttled: 2,
        waiting: 11,
        pause: None,
    }
}

fn leak() -> LeakView {
    LeakView {
        eni: "eni-0123456789abcdef0".to_owned(),
        failures: 3,
        reason: "Denied: no".to_owned(),
    }
}

fn judgement(state: State, reason: Option<&str>) -> Judgement {
    Judgement {
        call: "ModifyNetworkInterfaceAttribute",
        state,
        reason: reason.map(str::to_owned),
    }
}

fn remnant(fate: Fate) -> Remnant {
    Remnant {
        eni: "eni-0123456789abcdef0".to_owned(),
        subnet: "subnet-0123456789abcdef0".to_owned(),
        instance: Some("i-0123456789abcdef0".to_owned()),
        created: Some("2026-01-31T12:00:00Z".to_owned()),
        fate,
    }
}

fn instance_type() -> MaxPods {
    MaxPods {
        instance_type: "m5.large".to_owned(),
        enis: 3,
        blocks_per_eni: 9,
        prefixes: true,
        addresses: 432,
        max_pods: 434,
    }
}

fn setting(source: Source) -> Row {
    Row {
        key: "taint.after".to_owned(),
        value: "2m".to_owned(),
        default: "2m".to_owned(),
        source,
        help: "Time".to_owned(),
    }
}

#[test]
fn tables_have_a_line_a_row_and_their_texts_last() {
    let cases = [
        (
            nodes(&[node(), held_up()], PLAIN),
            "\
NODE          INSTANCE             ADDRESSES  MISSING  ENIS  NEXT STEP  OBSTACLE
ip-10-0-1-20  i-0123456789abcdef0  8          0        1/3   -          -
n2            -                    0          9        0/?   a step     \
             Denied: a right is missing, next try 12:00
",
        ),
        (
            subnets(&[subnet(), refusing()], PLAIN),
            "\
SUBNET                    ZONE           ROOM  LASTS    REFUSED
subnet-0123456789abcdef0  eu-central-1a  4091  120 min  -
subnet-2                  eu-central-1a  4091  -        Prefix until 12:15
",
        ),
        (
            pools(&[pool(), plain_pool()], PLAIN),
            "\
POOL     NODES  ENIS  ADDRESSES  WANTED  IPV4    IPV6  SHORT  ORPHANS  FAULTS
default  2      3     24         20      -       -     -      -        -
blue     2      3     24         20      12/256  -     1      1        one; two
",
        ),
        (
            budgets(&[budget()], PLAIN),
            "\
CALL                             BURST  RATE/S  NOW   THROTTLED  WAITING  PAUSE
ModifyNetworkInterfaceAttribute  80     16.0    50 %  2          11       -
",
        ),
        (
            leaks(&[leak()], PLAIN),
            "\
ENI                    FAILURES  REASON
eni-0123456789abcdef0  3         Denied: no
",
        ),
        (
            max_pods(&[instance_type()], PLAIN),
            "\
TYPE      ENIS  BLOCKS PER ENI  BLOCK  ADDRESSES  MAX PODS
m5.large  3     9               /28    432        434
",
        ),
    ];
    for (shown, expected) in cases {
        assert_eq!(shown, expected);
    }
}

#[test]
fn each_state_of_a_right_an_eni_and_a_setting_has_a_word() {
    let rights = [
        judgement(State::Allowed, None),
        judgement(State::Untried, Some("no trial")),
        judgement(State::Optional, Some("Denied: no")),
        judgement(State::Refused, Some("Denied: no")),
    ];
    let expected = "\
CALL                             STATE     REASON
ModifyNetworkInterfaceAttribute  allowed   -
ModifyNetworkInterfaceAttribute  untried   no trial
ModifyNetworkInterfaceAttribute  optional  for static IPs alone: Denied: no
ModifyNetworkInterfaceAttribute  refused   Denied: no
";
    assert_eq!(judgements(&rights, PLAIN), expected);
    let gone = [
        remnant(Fate::Deleted),
        remnant(Fate::Deletable),
        remnant(Fate::InUse),
        remnant(Fate::Failed("Denied: no".to_owned())),
    ];
    let words = ["deleted", "deletable", "in use", "not deleted: Denied: no"];
    let shown = remnants(&gone, PLAIN);
    for (line, word) in shown.lines().skip(1).zip(words) {
        assert!(
            line.ends_with(&format!("2026-01-31T12:00:00Z  {word}")),
            "{line}"
        );
    }
    let shown = settings(&[setting(Source::File), setting(Source::Default)], PLAIN);
    let expected = "\
KEY          VALUE  SOURCE
taint.after  2m     file
taint.after  2m     default
";
    assert_eq!(shown, expected);
}

#[test]
fn one_node_is_shown_with_all_that_follows_for_it() {
    let shown = why(&why_view(), PLAIN);
    let (_, rest) = shown.split_once("\n\n").unwrap();
    let expected = "\
a change is in progress at EC2
urgency of the next step: deficit
obstacle: Denied: a right is missing, next try 12:00
finding: two groups
document: spec.eni: bad
write: forbidden

ENI    USE
eni-1  published
";
    assert_eq!(rest, expected);
    let quiet = WhyView {
        need: None,
        is_busy: false,
        obstacles: Vec::new(),
        problems: Vec::new(),
        findings: Vec::new(),
        write_fault: None,
        ..why_view()
    };
    let table = nodes(&[node()], PLAIN);
    let expected = format!("{table}\nENI    USE\neni-1  published\n");
    assert_eq!(why(&quiet, PLAIN), expected);
}

/// A text of EC2, such as a refusal, may be longer.
#[test]
fn tables_without_long_texts_fit_a_small_terminal() {
    let tables = [
        nodes(&[node()], PLAIN),
        why(&why_view(), PLAIN),
        subnets(&[subnet(), refusing()], PLAIN),
        pools(&[pool(), plain_pool()], PLAIN),
        budgets(&[budget()], PLAIN),
        leaks(&[leak()], PLAIN),
        judgements(&[judgement(State::Allowed, None)], PLAIN),
        remnants(&[remnant(Fate::Deletable)], PLAIN),
        max_pods(&[instance_type()], PLAIN),
        settings(&[setting(Source::Default)], PLAIN),
    ];
    for table in tables {
        let widest = table.lines().map(|line| line.chars().count()).max();
        assert!(widest.unwrap() <= WIDTH, "{widest:?}:\n{table}");
    }
}

/// The keys of a value. Names of objects, such as ENIs, are no keys.
fn keys(value: &Value, of_names: &[&str]) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let inner = fields
                .iter()
                .filter(|(key, _)| !of_names.contains(&key.as_str()))
                .flat_map(|(_, value)| keys(value, of_names));
            fields.keys().cloned().chain(inner).collect()
        }
        Value::Array(items) => items.iter().flat_map(|it| keys(it, of_names)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

#[test]
fn the_keys_of_json_are_in_camel_case() {
    fn json<T: Serialize>(value: &T) -> Value {
        serde_json::to_value(value).unwrap()
    }
    let values = [
        json(&held_up()),
        json(&why_view()),
        json(&refusing()),
        json(&plain_pool()),
        json(&budget()),
        json(&leak()),
        json(&judgement(State::Optional, Some("no"))),
        json(&remnant(Fate::Failed("no".to_owned()))),
        json(&instance_type()),
        json(&setting(Source::File)),
    ];
    for value in &values {
        let keys = keys(value, &["refused", "orphans"]);
        let keys = keys.iter().filter(|it| !it.starts_with("eni-"));
        for key in keys {
            let starts_small = key.starts_with(|it: char| it.is_ascii_lowercase());
            let is_word = key.chars().all(|it| it.is_ascii_alphanumeric());
            assert!(starts_small && is_word, "{key}: {value}");
        }
    }
    let shown = &values[7];
    assert_eq!(shown["fate"]["state"], "failed", "{shown}");
    assert_eq!(values[0]["obstacle"]["nextTry"], "12:00");
}
