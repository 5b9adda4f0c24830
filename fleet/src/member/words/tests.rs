use serde_json::{Map, json};

use super::*;

const BLOCK: &str = "10.0.0.16/28";

fn block() -> IpNet {
    BLOCK.parse().unwrap()
}

/// An object with the entry `word` for all addresses of the block but the last, which has `last`.
fn object(word: &str, last: &str) -> Value {
    let addresses = (16..31).map(|n| (format!("10.0.0.{n}"), json!(word)));
    let mut words: Map<String, Value> = addresses.collect();
    words.insert("10.0.0.31".to_owned(), json!(last));
    json!({"status": {"ipam": {"release-ips": words}}})
}

fn words(object: &Value) -> Words {
    let mut words = Words::default();
    words.observe(object, &NodeDocument::read(object));
    let is_gone = |_: &IpNet| false;
    words.note_ready(&[block()].into(), is_gone, Time::from_millis(0));
    words
}

#[test]
fn a_prefix_goes_once_the_agent_gives_back_all_of_it() {
    for last in ["marked-for-release", "do-not-release"] {
        let words = words(&object("ready-for-release", last));
        assert!(!words.is_ready(&block()), "{last}");
    }
    assert!(words(&object("ready-for-release", "released")).is_ready(&block()));
}

#[test]
fn one_address_that_is_kept_keeps_the_prefix() {
    let mut words = words(&object("ready-for-release", "do-not-release"));
    assert_eq!(words.is_used(&block()), Some(true));
    let attached = [block()].into();
    words.decide(Some(&attached), &BTreeSet::new(), &BTreeSet::new());
    assert_eq!(words.changes().len(), 16);
    assert!(words.changes().values().all(Option::is_none));
    // A call in flight can still unassign the block.
    words.decide(Some(&attached), &BTreeSet::new(), &attached);
    assert!(words.changes().is_empty());
}

#[test]
fn the_grace_begins_with_each_epoch() {
    let grace = Duration::from_mins(1);
    let mut words = words(&object("ready-for-release", "ready-for-release"));
    let at = |seconds: u64| Time::from_millis(seconds * 1000);
    words.begin_epoch(at(50));
    assert_eq!(words.due(grace, at(109)).count(), 0);
    assert_eq!(words.due(grace, at(110)).count(), 1);
}

#[test]
fn a_block_is_used_while_a_pod_has_an_address_of_it() {
    let mut object = json!({"status": {"ipam": {"used": {"10.0.0.20": {"owner": "a/b"}}}}});
    assert_eq!(words(&object).is_used(&block()), Some(true));
    object["status"]["ipam"]["used"] = json!({"10.0.1.20": {"owner": "a/b"}});
    assert_eq!(words(&object).is_used(&block()), Some(false));
}
