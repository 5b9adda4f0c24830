//! Release with agents before Cilium 1.20, which answer for each address.

mod play;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleet::{ReleaseMode, Settings};
use serde_json::{Map, Value, json};

use super::bed::{Bed, CLUSTER, world};

const SOON: Duration = Duration::from_secs(20);
const MINUTE: Duration = Duration::from_mins(1);
const CALL: &str = "UnassignPrivateIpAddresses";

/// A node with 14 addresses, 2 used by pods and 8 pre-allocated, and an operator that leads.
fn bed() -> Bed {
    let settings = Settings {
        release: ReleaseMode::On,
        ..Settings::of(CLUSTER)
    };
    let mut bed = Bed::with(&world(), settings);
    bed.add_node("one", "m5.large", "subnet-a");
    let used = (0..6).map(|n| (format!("10.99.0.{n}"), json!({"owner": "a/b"})));
    let used = Value::Object(used.collect());
    bed.change("one", &json!({"status": {"ipam": {"used": used}}}));
    bed.run(MINUTE / 2);
    bed.lead();
    bed.until(MINUTE * 2, "addresses", |bed| pool(bed).len() >= 14);
    bed.run(MINUTE);
    let gone = (0..6).map(|n| (format!("10.99.0.{n}"), Value::Null));
    let gone = Value::Object(gone.collect());
    bed.change("one", &json!({"status": {"ipam": {"used": gone}}}));
    let first = pool(&bed).into_iter().take(2).collect();
    use_addresses(&mut bed, &first);
    bed
}

/// The addresses of the flat pool.
fn pool(bed: &Bed) -> BTreeSet<String> {
    let pool = bed.api.objects["one"]["spec"]["ipam"]["pool"].as_object();
    pool.into_iter().flat_map(Map::keys).cloned().collect()
}

/// Adds these addresses to those that pods use.
fn use_addresses(bed: &mut Bed, addresses: &BTreeSet<String>) {
    let used = addresses
        .iter()
        .map(|it| (it.clone(), json!({"owner": "a/b"})));
    let used = Value::Object(used.collect());
    bed.change("one", &json!({"status": {"ipam": {"used": used}}}));
}

/// The release entries of addresses.
fn words(bed: &Bed) -> BTreeMap<String, String> {
    let map = bed.api.objects["one"]["status"]["ipam"]["release-ips"].as_object();
    let entries = map.into_iter().flatten();
    entries
        .map(|(address, word)| (address.clone(), word.as_str().unwrap().to_owned()))
        .collect()
}

fn all_are(bed: &Bed, word: &str) -> bool {
    let words = words(bed);
    words.len() == 4 && words.values().all(|it| it == word)
}

/// Answers as an agent of Cilium 1.19: it keeps addresses in use, and removes entries that are
/// over.
fn answer(bed: &mut Bed) {
    let object = bed.api.objects["one"].clone();
    let pool = pool(bed);
    let used = &object["status"]["ipam"]["used"];
    let answers = words(bed).into_iter().filter_map(|(address, word)| {
        let answer = match word.as_str() {
            "marked-for-release" if used[&address].is_object() => json!("do-not-release"),
            "marked-for-release" => json!("ready-for-release"),
            "released" if !pool.contains(&address) => Value::Null,
            _ => return None,
        };
        Some((address, answer))
    });
    let answers = Value::Object(answers.collect());
    bed.change(
        "one",
        &json!({"status": {"ipam": {"release-ips": answers}}}),
    );
}

fn held(bed: &Bed) -> usize {
    bed.cloud
        .interfaces()
        .map(|it| it.addresses.blocks.len())
        .sum()
}

#[test]
fn an_address_goes_by_four_words() {
    let mut bed = bed();
    bed.run(Duration::from_secs(170));
    assert_eq!(words(&bed), BTreeMap::new());
    bed.until(SOON, "marks", |bed| all_are(bed, "marked-for-release"));
    bed.run(MINUTE * 10);
    assert_eq!((bed.calls(CALL), pool(&bed).len()), (0, 14), "no answer");
    answer(&mut bed);
    bed.run(Duration::from_secs(55));
    assert_eq!((bed.calls(CALL), pool(&bed).len()), (0, 10));
    bed.until(SOON, "a call", |bed| bed.calls(CALL) > 0);
    bed.until(MINUTE * 2, "the last word", |bed| all_are(bed, "released"));
    answer(&mut bed);
    bed.run(MINUTE * 10);
    assert_eq!(words(&bed), BTreeMap::new());
    assert_eq!((held(&bed), pool(&bed).len()), (10, 10));
    bed.assert_true("four words");
}

#[test]
fn an_address_that_a_pod_has_stays() {
    let mut bed = bed();
    let marks = |bed: &Bed| all_are(bed, "marked-for-release");
    bed.until(MINUTE * 4, "marks", marks);
    let marked = words(&bed).into_keys().take(1).collect();
    use_addresses(&mut bed, &marked);
    answer(&mut bed);
    bed.until(MINUTE * 4, "the others", |bed| bed.calls(CALL) > 0);
    bed.run(MINUTE * 3);
    answer(&mut bed);
    bed.run(MINUTE);
    assert!(pool(&bed).is_superset(&marked));
    assert_eq!((held(&bed), words(&bed)), (11, BTreeMap::new()));
}

#[test]
fn marks_go_once_the_node_needs_the_addresses() {
    let mut bed = bed();
    let marks = |bed: &Bed| all_are(bed, "marked-for-release");
    bed.until(MINUTE * 4, "marks", marks);
    let marked: BTreeSet<String> = words(&bed).into_keys().collect();
    let others = pool(&bed).difference(&marked).take(8).cloned().collect();
    use_addresses(&mut bed, &others);
    bed.until(SOON, "no marks", |bed| words(bed).is_empty());
    bed.run(MINUTE * 10);
    assert_eq!((bed.calls(CALL), words(&bed)), (0, BTreeMap::new()));
}

#[test]
fn a_new_leader_finishes_what_the_agent_gave_back_and_shows_it_to_nobody() {
    let mut bed = bed();
    let marks = |bed: &Bed| all_are(bed, "marked-for-release");
    bed.until(MINUTE * 4, "marks", marks);
    answer(&mut bed);
    bed.until(SOON, "withheld", |bed| pool(bed).len() == 10);
    bed.kill();
    bed.run(MINUTE);
    bed.lead();
    bed.run(Duration::from_secs(55));
    assert_eq!(bed.calls(CALL), 0, "the leader before may be at work");
    let mut most = 0;
    for _ in 0..60 {
        bed.run(Duration::from_secs(5));
        most = most.max(pool(&bed).len());
        answer(&mut bed);
    }
    assert_eq!((most, held(&bed)), (10, 10));
    assert_eq!(words(&bed), BTreeMap::new());
}

#[test]
fn an_agent_that_answers_for_blocks_has_no_words() {
    let mut bed = bed();
    let marks = |bed: &Bed| all_are(bed, "marked-for-release");
    bed.until(MINUTE * 4, "marks", marks);
    let used = pool(&bed).into_iter().map(|it| (it, Value::Null));
    let used = Value::Object(used.collect());
    bed.change("one", &json!({"status": {"ipam": {"used": used}}}));
    bed.request("one", 10);
    bed.until(SOON, "no words", |bed| words(bed).is_empty());
    bed.run(MINUTE * 10);
    assert_eq!((bed.calls(CALL), pool(&bed).len()), (0, 14));
}
