use std::pin::Pin;

use kube::api::DynamicObject;
use serde_json::Value;

use super::super::{objects, retry};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// The refusal of servers that have streams switched off.
const GATE: &str = "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: \
                    sendInitialEvents is forbidden for watch unless the WatchList feature gate is \
                    enabled";
/// The refusal of servers of 1.19 to 1.26.
const OLD: &str = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
                   resourceVersionMatch is forbidden for watch";

/// Events of a followed resource.
type Events = Pin<Box<dyn Stream<Item = Result<Event<DynamicObject>>> + Send>>;

fn follow(lists: &Lists, server: &Played) -> Events {
    let api = objects::services(&server.client);
    Box::pin(lists.follow(api, Config::default()))
}

/// The next events, each as a word.
async fn next<const N: usize>(events: &mut Events) -> [String; N] {
    let mut words = [const { String::new() }; N];
    for word in &mut words {
        let event = tokio::time::timeout(10 * SECOND, events.next()).await;
        *word = match event.expect("an event comes in time").unwrap() {
            Ok(event) => event.to_string(),
            Err(error) => error.to_string(),
        };
    }
    words
}

fn error(code: u16, message: &str) -> Value {
    serde_json::json!({"type": "ERROR", "object": Answer::status(code, message)})
}

#[tokio::test]
async fn all_objects_have_come_when_the_server_says_so() {
    let server = Played::new([Answer::Open(vec![added("a"), end(), added("b")])]);
    let mut events = follow(&Lists::default(), &server);
    let words = next(&mut events).await;
    assert_eq!(words, ["Init", "InitApply(a)", "InitDone", "Apply(b)"]);
    assert_eq!(server.streams(), [true], "nothing else is requested");
}

#[tokio::test]
async fn a_server_that_refuses_is_found_out_once_and_lists() {
    for (code, message) in [(422, GATE), (422, OLD), (400, ""), (403, GATE)] {
        let lists = Lists::default();
        let refusal = Answer::refusal(code, message);
        let server = Played::new([refusal, Answer::list(&["a"]), Answer::list(&["b"])]);
        for name in ["InitApply(a)", "InitApply(b)"] {
            let words = next(&mut follow(&lists, &server)).await;
            assert_eq!(words, ["Init", name, "InitDone"], "{code} {message}");
        }
        assert_eq!(server.streams(), [true, false, false], "{code} {message}");
    }
}

#[tokio::test]
async fn a_server_that_takes_a_stream_for_a_watch_is_waited_for_within_a_bound() {
    let lists = Lists {
        bound: SECOND / 10,
        ..Lists::default()
    };
    let server = Played::new([
        Answer::Open(vec![added("a")]),
        Answer::list(&["a"]),
        Answer::Open(vec![added("b")]),
        Answer::list(&["a", "b"]),
    ]);
    let mut events = follow(&lists, &server);
    let words = next(&mut events).await;
    let all = ["Init", "InitApply(a)", "Init", "InitApply(a)", "InitDone"];
    assert_eq!(words, all);
    // A watch is not bound.
    let words = next(&mut events).await;
    assert_eq!(words, ["Apply(b)"]);
    let more = tokio::time::timeout(3 * lists.bound, events.next()).await;
    assert!(more.is_err(), "{more:?}");
    next::<4>(&mut follow(&lists, &server)).await;
    assert_eq!(server.streams(), [true, false, false, false]);
}

#[tokio::test]
async fn a_stream_that_the_server_ends_in_the_middle_is_replaced_by_one_list() {
    // So does one whose store cannot say how far it is, and one that stops.
    let failed = vec![
        added("a"),
        error(500, "the required storage feature is disabled"),
    ];
    for (broken, again) in [(failed, 1), (vec![added("a")], 2)] {
        let lists = Lists::default();
        let mut answers: Vec<_> = (0..again).map(|_| Answer::Ended(broken.clone())).collect();
        answers.extend([Answer::list(&["b"]), Answer::Open(vec![added("c")])]);
        answers.push(Answer::Open(vec![end()]));
        let server = Played::new(answers);
        let mut events = follow(&lists, &server);
        let words = next(&mut events).await;
        let all = [
            "Init",
            "InitApply(a)",
            "Init",
            "InitApply(b)",
            "InitDone",
            "Apply(c)",
        ];
        assert_eq!(words, all);
        let words = next(&mut follow(&lists, &server)).await;
        assert_eq!(words, ["Init", "InitDone"], "others are streamed");
        let mut streams = vec![true; again];
        streams.extend([false, false, true]);
        assert_eq!(server.streams(), streams);
    }
}

#[tokio::test]
async fn a_list_that_fails_too_says_nothing_of_streams() {
    let server = Played::new([
        Answer::Ended(vec![error(500, "etcdserver: no leader")]),
        Answer::refusal(500, "etcdserver: no leader"),
        Answer::Open(vec![added("a"), end()]),
    ]);
    let mut events = follow(&Lists::default(), &server);
    let [init, again, failed, rest @ ..] = next::<6>(&mut events).await;
    assert_eq!([init, again], ["Init", "Init"]);
    assert!(failed.contains("no leader"), "{failed}");
    assert_eq!(rest, ["Init", "InitApply(a)", "InitDone"]);
    assert_eq!(server.streams(), [true, false, true]);
}

#[tokio::test]
async fn every_other_trouble_is_told_and_what_comes_next_is_streamed() {
    for code in [401, 403, 404, 410, 429, 500, 503, 504] {
        let refusal = Answer::refusal(code, "not now");
        let server = Played::new([refusal, Answer::Open(vec![end()])]);
        let mut events = follow(&Lists::default(), &server);
        let error = events.next().await.unwrap().unwrap_err();
        assert!(matches!(error, Error::WatchStartFailed(_)), "{error}");
        let wait = (code == 429).then_some(7 * SECOND);
        assert_eq!(retry::requested(&error), wait, "{code}");
        assert_eq!(next(&mut events).await, ["Init", "InitDone"]);
        assert_eq!(server.streams(), [true, true], "{code}");
    }
    let expired = Answer::Ended(vec![added("a"), error(410, "too old")]);
    let server = Played::new([expired, Answer::Open(vec![end()])]);
    let mut events = follow(&Lists::default(), &server);
    let [_, _, report] = next(&mut events).await;
    assert!(report.contains("too old"), "{report}");
    assert_eq!(next(&mut events).await, ["Init", "InitDone"]);
    assert_eq!(server.streams(), [true, true]);
}

#[test]
fn a_stream_is_as_new_as_its_request() {
    let of = |uri: &str| {
        let request = newest(Request::get(uri).body(()).unwrap());
        request.uri().to_string()
    };
    let streamed = "/api/v1/pods?watch=true&fieldSelector=a%3Db&sendInitialEvents=true";
    let requested = format!("{streamed}&resourceVersion=0");
    assert_eq!(of(&requested), streamed);
    assert_eq!(
        of(&format!("http://[::1]:1{requested}")),
        format!("http://[::1]:1{streamed}")
    );
    for other in [
        "/version",
        "/api/v1/pods?watch=true&resourceVersion=0",
        "/api/v1/pods?sendInitialEvents=true&resourceVersion=07",
    ] {
        assert_eq!(of(other), other);
    }
}
