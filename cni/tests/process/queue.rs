//! DELs while no agent answers.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Agent, Answer, CONTAINER, Call, ENDPOINT_ID, World, willing};

const DELETE: &str = "DELETE /v1/endpoints/0a1b2c/eth0";

fn entry(world: &World) -> Value {
    let file = world.queue().join(format!("{ENDPOINT_ID}.json"));
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

#[test]
fn a_del_without_an_agent_succeeds_and_is_carried_out_later() {
    let world = World::new();
    let config = world.config("1.1.0");
    for _again in 0..2 {
        let del = Call::new(&world, "DEL", &config).without("CNI_NETNS").run();
        assert_eq!(del.success(), Value::Null);
        assert_eq!(world.queued(), [format!("{ENDPOINT_ID}.json")]);
    }
    assert_eq!(
        entry(&world),
        json!({"version": 1, "container-id": CONTAINER, "interface": "eth0", "network": "towpath"})
    );
    let agent = Agent::willing(&world);
    Call::new(&world, "STATUS", &config).run().success();
    assert_eq!(agent.calls(), [DELETE, "GET /v1/ready"]);
    assert_eq!(world.queued(), Vec::<String>::new());
}

/// The holder of the lock may be about to carry the entry out: nothing new comes before that.
#[test]
fn an_entry_is_left_to_whoever_is_at_the_queue() {
    let world = World::new();
    let config = world.config("1.1.0");
    Call::new(&world, "DEL", &config).run().success();
    let _agent = Agent::willing(&world);
    let lock = fs::File::create(world.queue().join(".lock")).unwrap();
    lock.lock().unwrap();
    Call::new(&world, "DEL", &config).run().success();
    assert_eq!(world.queued().len(), 1);
    drop(lock);
    Call::new(&world, "DEL", &config).run().success();
    assert!(world.queued().is_empty());
}

#[test]
fn a_del_of_what_the_agent_has_never_made_succeeds() {
    let world = World::new();
    let _agent = Agent::start(&world, |_request| {
        let error = json!({"code": "invalid-field", "message": "lo", "field": "interface"});
        Answer::Json(400, json!({"error": error}))
    });
    Call::new(&world, "DEL", &world.config("1.1.0"))
        .run()
        .success();
    assert!(world.queued().is_empty());
}

#[test]
fn an_agent_that_hangs_breaks_off_or_is_not_ready_has_the_del_queued() {
    let not_ready = json!({"error": {"code": "not-ready", "message": "starting"}});
    let retry = json!({"error": {"code": "busy", "message": "wait", "retry": true}});
    let version = json!({"error": {"code": "unknown-version", "message": "v1?"},
        "supported-versions": ["v2"]});
    for answer in [
        Answer::Hang,
        Answer::Close,
        Answer::Json(503, not_ready),
        Answer::Json(429, retry),
        Answer::Json(404, version),
    ] {
        let world = World::new();
        let given = answer.clone();
        let _agent = Agent::start(&world, move |_request| given.clone());
        let mut config = world.config("1.0.0");
        config["timeout"] = json!(1);
        Call::new(&world, "DEL", &config).run().success();
        assert_eq!(world.queued().len(), 1, "{answer:?}");
    }
}

#[test]
fn a_del_that_the_agent_refuses_for_good_is_told() {
    let world = World::new();
    let _agent = Agent::start(&world, |_request| {
        Answer::Json(500, json!({"error": {"code": "internal", "message": "no"}}))
    });
    let outcome = Call::new(&world, "DEL", &world.config("1.0.0")).run();
    let (code, text) = outcome.failure();
    assert_eq!(
        (code, text.as_str()),
        (104, "DEL 0a1b2c/eth0: no (internal)")
    );
    assert!(world.queued().is_empty());
}

#[test]
fn a_del_that_cannot_be_queued_fails_with_code_5() {
    let world = World::new();
    fs::write(world.path().join("state"), "a file in the folder's place").unwrap();
    let outcome = Call::new(&world, "DEL", &world.config("1.0.0")).run();
    assert_eq!(outcome.failure().0, 5);
}

#[test]
fn an_add_carries_out_the_same_containers_del_first_or_fails() {
    let world = World::new();
    let config = world.config("1.0.0");
    Call::new(&world, "DEL", &config).run().success();
    let (code, _text) = Call::new(&world, "ADD", &config).run().failure();
    assert_eq!(code, 11);
    assert_eq!(world.queued().len(), 1);
    let agent = Agent::willing(&world);
    Call::new(&world, "ADD", &config).run().success();
    assert_eq!(agent.calls(), [DELETE, "PUT /v1/endpoints"]);
}

#[test]
fn without_an_agent_add_is_to_be_tried_again() {
    let world = World::new();
    let (code, text) = Call::new(&world, "ADD", &world.config("1.0.0"))
        .run()
        .failure();
    assert_eq!(code, 11);
    assert!(text.contains("no agent answers at"), "{text}");
}

#[test]
fn one_call_carries_out_no_more_than_it_may_and_sets_aside_what_it_cannot_read() {
    let world = World::new();
    fs::create_dir_all(world.queue()).unwrap();
    for number in 0..40 {
        let entry = json!({"version": 1, "container-id": format!("c{number}"),
            "interface": "eth0", "network": "towpath"});
        let file = world.queue().join(format!("{number:012x}.json"));
        fs::write(file, entry.to_string()).unwrap();
    }
    fs::write(
        world.queue().join("ffffffffff00.json"),
        "{\"version\": 1, \"cont",
    )
    .unwrap();
    fs::write(world.queue().join(".new-left"), "").unwrap();
    let agent = Agent::willing(&world);
    let status = || {
        Call::new(&world, "STATUS", &world.config("1.1.0"))
            .run()
            .success()
    };
    status();
    let deletes = agent
        .calls()
        .iter()
        .filter(|call| call.starts_with("DELETE"))
        .count();
    assert!((15..=16).contains(&deletes), "{deletes}");
    status();
    status();
    let deletes: std::collections::BTreeSet<_> = agent
        .calls()
        .into_iter()
        .filter(|call| call.starts_with("DELETE"))
        .collect();
    assert_eq!(deletes.len(), 40);
    assert_eq!(world.queued(), [".new-left", "ffffffffff00.json.corrupt"]);
}

/// Two that carry out one queue must not take away what an ADD has made in between.
#[test]
fn an_add_waits_for_who_is_carrying_out_its_del() {
    let world = World::new();
    let config = world.config("1.1.0");
    Call::new(&world, "DEL", &config).run().success();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (begun, seen) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&order));
    let count = Arc::clone(&begun);
    let _agent = Agent::start(&world, move |request| {
        seen.lock().unwrap().push(request.method.clone());
        if request.method == "DELETE" && count.fetch_add(1, Ordering::SeqCst) == 0 {
            // The other call has this time to overtake.
            std::thread::sleep(Duration::from_millis(300));
        }
        willing(request)
    });
    std::thread::scope(|scope| {
        scope.spawn(|| Call::new(&world, "STATUS", &config).run().success());
        let deadline = Instant::now() + Duration::from_secs(10);
        while begun.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < deadline, "the first call does not begin");
            std::thread::yield_now();
        }
        Call::new(&world, "ADD", &config).run().success();
    });
    let order = order.lock().unwrap().clone();
    assert_eq!(
        order.iter().filter(|method| *method == "DELETE").count(),
        1,
        "{order:?}"
    );
    assert_eq!(
        order.first().map(String::as_str),
        Some("DELETE"),
        "{order:?}"
    );
    assert!(world.queued().is_empty());
}

/// The queued DEL would remove the objects of a new ADD for its container.
#[test]
fn an_add_fails_while_its_del_cannot_be_carried_out() {
    let world = World::new();
    let config = world.config("1.0.0");
    Call::new(&world, "DEL", &config).run().success();
    let agent = Agent::start(&world, |request| match request.method.as_str() {
        "DELETE" => Answer::Json(500, json!({"error": {"code": "internal", "message": "no"}})),
        _ => willing(request),
    });
    let (code, text) = Call::new(&world, "ADD", &config).run().failure();
    assert_eq!(code, 104);
    assert!(
        text.starts_with("a DEL of this container is still queued"),
        "{text}"
    );
    // Another container's ADD goes on.
    Call::new(&world, "ADD", &config)
        .with("CNI_CONTAINERID", "other")
        .run()
        .success();
    assert_eq!(agent.calls(), [DELETE, DELETE, "PUT /v1/endpoints"]);
    assert_eq!(world.queued().len(), 1);
}
