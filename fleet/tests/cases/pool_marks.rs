//! Plain pools of which nodes have blocks do not go, whatever happens to them.

use std::time::Duration;

use fleet::{Part, Task, Written};
use serde_json::{Value, json};

use super::bed::{Bed, Fault, Planned};
use super::plain::{bed, blocks, check, faults, set_pool, small, want};

const SOON: Duration = Duration::from_secs(30);
const FINALIZER: &str = "pool.towpath.dev/blocks";

fn has_finalizer(bed: &Bed, pool: &str) -> bool {
    let all = bed.api.pools.get(pool);
    let all = all.and_then(|it| it["metadata"]["finalizers"].as_array());
    all.is_some_and(|all| all.contains(&json!(FINALIZER)))
}

/// Changes the metadata of a pool as a user.
fn change_pool(bed: &mut Bed, name: &str, key: &str, value: &Value) {
    let pool = bed.api.pools.get_mut(name).unwrap();
    pool["metadata"][key] = value.clone();
    let spec = pool["spec"].clone();
    set_pool(bed, name, &spec);
}

/// A pool of one CIDR, and a node with a block of it.
fn in_use() -> Bed {
    let mut bed = bed();
    set_pool(&mut bed, "green", &small(&["172.16.0.0/28"]));
    want(&mut bed, "one", "green", [4, 0]);
    bed.until(SOON, "a block", |bed| blocks(bed, "one").len() == 1);
    bed
}

/// The next work of that name is not sent.
fn drop_next(bed: &mut Bed, what: &'static str, kills: bool) {
    bed.faults.planned = Some(Planned {
        what,
        skip: 0,
        fault: Fault::Unsent,
        kills,
    });
}

#[test]
fn a_pool_gives_no_block_before_it_has_its_finalizer() {
    let mut bed = bed();
    set_pool(&mut bed, "green", &small(&["172.16.0.0/28"]));
    want(&mut bed, "one", "green", [4, 0]);
    let mut named = false;
    for round in 0..1_000 {
        if round < 500 {
            drop_next(&mut bed, "pool", false);
        }
        bed.run(Duration::from_millis(100));
        assert!(blocks(&bed, "one").is_empty() || has_finalizer(&bed, "green"));
        let report = bed.report("one");
        named |= report.starts_with("PoolUnusable: ") && report.contains("no reply");
    }
    assert!(named, "the failed write is named");
    assert_eq!((blocks(&bed, "one").len(), bed.report("one")), (1, ""));
    // One that is deleted before leaves nothing with a node.
    assert!(bed.faults.planned.is_none());
    bed.run(SOON);
    drop_next(&mut bed, "pool", false);
    set_pool(&mut bed, "red", &small(&["172.17.0.0/28"]));
    want(&mut bed, "two", "red", [4, 0]);
    bed.run(Duration::from_secs(3));
    set_pool(&mut bed, "red", &Value::Null);
    bed.until(SOON, "the report", |bed| {
        bed.report("two").starts_with("PoolUnknown: ")
    });
    assert!(blocks(&bed, "two").is_empty());
}

#[test]
fn a_pool_that_is_plain_no_more_stays_while_nodes_have_blocks() {
    for (key, value) in [("subnet-ids", "subnet-a"), ("unknown", "x")] {
        let mut bed = in_use();
        let annotations = json!({format!("ipam.towpath.dev/{key}"): value});
        change_pool(&mut bed, "green", "annotations", &annotations);
        bed.run(SOON);
        set_pool(&mut bed, "green", &Value::Null);
        bed.run(SOON);
        assert!(has_finalizer(&bed, "green"), "{key}");
        // The next leader has no plain pool to serve, and still lets this one go.
        bed.kill();
        bed.lead();
        bed.run(SOON);
        assert!(has_finalizer(&bed, "green"), "{key}");
        bed.api.delete("one", bed.now);
        bed.until(SOON, "the pool goes", |bed| bed.api.pools.is_empty());
    }
}

#[test]
fn blocks_of_enis_keep_no_pool() {
    let mut bed = bed();
    bed.add_node("one", "m5.large", "subnet-a");
    bed.until(SOON, "addresses of ENIs", |bed| bed.shown("one") >= 8);
    let allocated = json!([{"pool": "default", "cidrs": ["10.1.0.7/32"]}]);
    bed.change(
        "one",
        &json!({"spec": {"ipam": {"pools": {"allocated": allocated}}}}),
    );
    set_pool(&mut bed, "default", &small(&["172.17.0.0/24"]));
    bed.until(SOON, "the finalizer", |bed| has_finalizer(bed, "default"));
    assert!(bed.plain_pool("default").orphans.is_empty());
    set_pool(&mut bed, "default", &Value::Null);
    bed.until(SOON, "the pool goes", |bed| bed.api.pools.is_empty());
    assert_eq!(faults(&bed, "default"), [""; 0]);
}

#[test]
fn a_pool_that_is_deleted_while_no_operator_is_there_stays() {
    let mut bed = in_use();
    bed.kill();
    set_pool(&mut bed, "green", &Value::Null);
    bed.run(SOON);
    bed.lead();
    bed.run(SOON);
    assert!(has_finalizer(&bed, "green"));
    // Leaders change while it waits, and a watch is late by minutes.
    bed.kill();
    let mut stale: Vec<Value> = bed.api.objects.values().cloned().collect();
    stale[0]["spec"]["ipam"]["pools"]["allocated"] = json!([]);
    stale[0]["metadata"]["resourceVersion"] = json!("1");
    bed.api.lag = Duration::from_mins(5);
    bed.lead_from(stale);
    bed.run(Duration::from_mins(10));
    assert!(has_finalizer(&bed, "green"));
    bed.api.lag = Duration::ZERO;
    bed.api.delete("one", bed.now);
    bed.until(SOON, "the pool goes", |bed| bed.api.pools.is_empty());
}

#[test]
fn a_pool_stays_until_no_late_grant_can_come() {
    let mut bed = bed();
    set_pool(&mut bed, "green", &small(&["172.16.0.0/28"]));
    bed.until(SOON, "the finalizer", |bed| has_finalizer(bed, "green"));
    drop_next(&mut bed, "spec", true);
    want(&mut bed, "one", "green", [4, 0]);
    bed.run(SOON);
    let late = bed.faults.unsent.pop().unwrap();
    set_pool(&mut bed, "green", &Value::Null);
    // The next leader does not get to change the node's object at once.
    drop_next(&mut bed, "metadata", false);
    bed.lead();
    bed.run(Duration::from_secs(4));
    assert!(bed.faults.planned.is_none());
    let Task::Patch { name, body, .. } = late else {
        panic!("{late:?}");
    };
    let written = bed.api.patch(&name, Part::Spec, &body, bed.now);
    assert!(matches!(written, Written::Done(_)), "{written:?}");
    bed.run(SOON);
    assert_eq!(check(&bed), 1);
    assert!(has_finalizer(&bed, "green"));
}

#[test]
fn a_pool_gets_its_finalizer_again_and_a_new_one_of_its_name_gets_its_own() {
    let mut bed = in_use();
    change_pool(&mut bed, "green", "finalizers", &json!([]));
    bed.until(SOON, "the finalizer again", |bed| {
        has_finalizer(bed, "green")
    });
    // By force: it is gone, and made again.
    bed.api.pools.clear();
    set_pool(&mut bed, "green", &small(&["172.16.0.0/28"]));
    bed.until(SOON, "that of the new one", |bed| {
        has_finalizer(bed, "green")
    });
    assert!(bed.plain_pool("green").orphans.is_empty());
    set_pool(&mut bed, "green", &Value::Null);
    bed.run(SOON);
    assert!(has_finalizer(&bed, "green"));
    assert_eq!(check(&bed), 1);
}
