use serde_json::json;

use super::*;
use crate::settings::RELEASE_DELAY as DELAY;

const POLICY: ReleasePolicy = ReleasePolicy {
    is_on: true,
    delay: DELAY,
};

/// An object whose status shows these addresses, with the spec that its agent wrote last.
fn object(shown: &[&str], written: u32) -> Value {
    let pools = json!({"requested": [{"pool": "default", "needed": {"ipv4-addrs": written}}]});
    json!({
        "spec": {"ipam": {"pools": pools}},
        "status": {"eni": {"enis": {"eni-1": {"id": "eni-1", "addresses": shown}}}}
    })
}

fn observe(releases: &mut Releases, (before, object): (Option<&Value>, &Value), claimed: &[&str]) {
    let claimed = claimed.iter().map(|text| text.parse().unwrap());
    let mut document = NodeDocument::read(object);
    document
        .allocated
        .insert("default".to_owned(), claimed.collect());
    let snapshot = Snapshot {
        object,
        published: &Published::read(object),
        document: &document,
    };
    releases.observe(snapshot, before, Time::from_millis(0));
}

#[test]
fn a_write_answers_for_the_blocks_that_were_shown_before_it() {
    let mut releases = Releases::new(POLICY);
    let first = object(&["10.0.0.5"], 1);
    observe(&mut releases, (None, &first), &[]);
    assert_eq!(releases.never_claimed(), 1);
    let second = object(&["10.0.0.5", "10.0.0.6"], 1);
    observe(&mut releases, (Some(&first), &second), &[]);
    assert_eq!(releases.never_claimed(), 2, "the agent has written nothing");
    let third = object(&["10.0.0.5", "10.0.0.6", "10.0.0.7"], 2);
    observe(&mut releases, (Some(&second), &third), &[]);
    assert_eq!(releases.never_claimed(), 1, "it may not have seen the last");
    observe(&mut releases, (None, &third), &[]);
    assert_eq!(
        releases.never_claimed(),
        3,
        "nothing is known of another object"
    );
}

#[test]
fn a_claim_is_an_answer() {
    let mut releases = Releases::new(POLICY);
    let claimed = object(&["10.0.0.5"], 1);
    observe(&mut releases, (None, &claimed), &["10.0.0.5/32"]);
    assert_eq!(releases.never_claimed(), 0);
    assert_eq!(releases.next(Time::from_millis(0)), None);
    observe(&mut releases, (Some(&claimed), &claimed), &[]);
    let due = Time::from_millis(0).after(DELAY);
    assert_eq!(releases.next(Time::from_millis(0)), Some(due));
    observe(&mut releases, (Some(&claimed), &claimed), &["10.0.0.5/32"]);
    assert_eq!(
        releases.next(Time::from_millis(0)),
        None,
        "it is claimed again"
    );
}

#[test]
fn the_grace_of_a_mark_begins_with_each_epoch() {
    let mut releases = Releases::new(POLICY);
    let mut marked = object(&[], 1);
    marked["status"]["ipam"]["release-ips"] = json!({"10.0.0.16/28": "ready-for-release"});
    observe(&mut releases, (None, &marked), &[]);
    let begun = Time::from_millis(50_000);
    releases.begin_epoch(begun);
    assert_eq!(
        releases.next(begun),
        Some(begun.after(RETURN_TIME_OF_OTHERS))
    );
}

#[test]
fn an_agent_of_another_generation_begins_anew() {
    let mut releases = Releases::new(POLICY);
    let mut older = object(&["10.0.0.5"], 1);
    older["spec"]["ipam"]["pools"] = Value::Null;
    observe(&mut releases, (None, &older), &[]);
    assert_eq!(releases.never_claimed(), 0, "its handshake is per address");
    let newer = object(&["10.0.0.5"], 1);
    observe(&mut releases, (Some(&older), &newer), &[]);
    assert_eq!(releases.never_claimed(), 1);
}

#[test]
fn an_epoch_begins_without_answers() {
    let mut releases = Releases::new(POLICY);
    let object = object(&["10.0.0.5"], 1);
    observe(&mut releases, (None, &object), &["10.0.0.5/32"]);
    releases.begin_epoch(Time::from_millis(0));
    observe(&mut releases, (Some(&object), &object), &[]);
    assert_eq!(releases.never_claimed(), 1);
}

#[test]
fn the_grace_of_what_an_agent_gave_back_begins_with_each_epoch() {
    let mut releases = Releases::new(POLICY);
    let mut ready = object(&[], 1);
    ready["spec"]["ipam"]["pools"] = Value::Null;
    ready["status"]["ipam"]["release-ips"] = json!({"10.0.0.5": "ready-for-release"});
    observe(&mut releases, (None, &ready), &[]);
    let attached = ["10.0.0.5/32".parse().unwrap()].into();
    let is_gone = |_: &IpNet| false;
    let words = &mut releases.words;
    words.note_ready(&attached, is_gone, Time::from_millis(0));
    let begun = Time::from_millis(50_000);
    releases.begin_epoch(begun);
    assert_eq!(
        releases.next(begun),
        Some(begun.after(RETURN_TIME_OF_OTHERS))
    );
}

#[test]
fn void_marks_stay_void_until_the_status_has_none() {
    let mut releases = Releases::new(POLICY);
    let mut marked = object(&[], 1);
    marked["status"]["ipam"]["release-ips"] = json!({"10.0.0.16/28": "ready-for-release"});
    observe(&mut releases, (None, &marked), &[]);
    releases.void_marks();
    observe(&mut releases, (Some(&marked), &marked), &[]);
    assert!(!releases.withholds(&"10.0.0.16/28".parse().unwrap()));
}
