//! Plain pools: nodes get blocks, pools in use stay, leaders take over.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::read_manifest;

use super::bed::{Bed, NODES, SOON};

const POOLS: &str = "/apis/cilium.io/v2alpha1/ciliumpodippools";

pub(super) fn make_pool(bed: &Bed, name: &str, spec: &Value) -> Result<()> {
    let pool = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": name}, "spec": spec
    });
    let admin = bed.plane.server.admin();
    // A resource that was defined a moment ago is not served yet.
    let make = || admin.post(POOLS, &pool)?.expect(201);
    eventually(SOON, "the pool is made", make).map(drop)
}

/// A node of no instance wants this many addresses of a pool.
pub(super) fn want(bed: &Bed, node: &str, pool: &str, ipv4: u32) -> Result<()> {
    let ipam = json!({"pools": {"requested": [{"pool": pool, "needed": {"ipv4-addrs": ipv4}}]}});
    let path = format!("{NODES}/{node}");
    let admin = bed.plane.server.admin();
    if admin.get(&path)?.code == 200 {
        let wanted = json!({"spec": {"ipam": ipam}});
        return admin.merge(&path, &wanted)?.expect(200).map(drop);
    }
    let object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode",
        "metadata": {"name": node}, "spec": {"ipam": ipam}
    });
    let make = || admin.post(NODES, &object)?.expect(201);
    eventually(SOON, "the node is made", make).map(drop)
}

fn blocks(node: &Value) -> Vec<String> {
    let all = node["spec"]["ipam"]["pools"]["allocated"].as_array();
    let entries = all.into_iter().flatten();
    let lists = entries.filter_map(|entry| entry["cidrs"].as_array());
    let texts = lists.flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

/// Waits until a node has this many blocks.
pub(super) fn has(bed: &Bed, node: &str, count: usize) -> Result<Vec<String>> {
    let look = || {
        let path = format!("{NODES}/{node}");
        let object = bed.plane.server.admin().get(&path)?.expect(200)?;
        let blocks = blocks(&object);
        check(blocks.len() == count, || format!("{node}: {object}"))?;
        Ok(blocks)
    };
    let what = format!("{node} has {count} blocks");
    let found = eventually(SOON, &what, look).inspect_err(|_| println!("{}", bed.logs()))?;
    Ok(found.0)
}

/// Checks that no block has two nodes. Returns the number of blocks.
pub(super) fn count(bed: &Bed) -> Result<usize> {
    let nodes = bed.plane.server.admin().get(NODES)?.expect(200)?;
    let mut owners = BTreeMap::new();
    for node in nodes["items"].as_array().into_iter().flatten() {
        for block in blocks(node) {
            let name = node["metadata"]["name"].clone();
            let other = owners.insert(block.clone(), name.clone());
            check(other.is_none(), || {
                format!("{block} of {name} and {other:?}")
            })?;
        }
    }
    Ok(owners.len())
}

fn spec(cidr: &str) -> Value {
    json!({"ipv4": {"cidrs": [cidr], "maskSize": 28}, "allowFirstIP": true, "allowLastIP": true})
}

#[test]
fn nodes_get_blocks_and_a_pool_in_use_stays() {
    let bed = Bed::create(1).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    make_pool(&bed, "green", &spec("172.16.0.0/24")).unwrap();
    want(&bed, "plain-0", "green", 20).unwrap();
    assert_eq!(
        has(&bed, "plain-0", 2).unwrap(),
        ["172.16.0.0/28", "172.16.0.16/28"]
    );
    // A node on ENIs has blocks beside them.
    bed.add_node(0, 8).unwrap();
    bed.node_has(0, 8).unwrap();
    let both = json!({"spec": {"ipam": {"pools": {"requested": [
        {"pool": "default", "needed": {"ipv4-addrs": 8}},
        {"pool": "green", "needed": {"ipv4-addrs": 4}}
    ]}}}});
    let path = format!("{NODES}/node-0");
    bed.plane
        .server
        .admin()
        .merge(&path, &both)
        .unwrap()
        .expect(200)
        .unwrap();
    has(&bed, "node-0", 1).unwrap();
    let shown = operator.ask("pools").unwrap();
    assert!(shown.contains("green") && shown.contains("3/16"), "{shown}");
    let metrics = operator.get("/metrics").unwrap();
    let line = "towpath_operator_pool_blocks{pool=\"green\",family=\"ipv4\",state=\"taken\"} 3";
    assert!(metrics.contains(line), "{metrics}");

    let pool = format!("{POOLS}/green");
    let admin = bed.plane.server.admin();
    admin.delete(&pool).unwrap();
    let is_there = || {
        let pool = admin.get(&pool)?.expect(200)?;
        let deleted = &pool["metadata"]["deletionTimestamp"];
        check(deleted.is_string(), || pool.to_string())
    };
    eventually(SOON, "the pool waits for its blocks", is_there).unwrap();
    for node in ["plain-0", "node-0"] {
        admin.delete(&format!("{NODES}/{node}")).unwrap();
    }
    let is_gone = || {
        let answer = admin.get(&pool)?;
        check(answer.code == 404, || answer.to_string())
    };
    eventually(SOON, "the pool is gone", is_gone).unwrap();
    assert!(operator.stop().unwrap());
    bed.finish().unwrap();
}

#[test]
fn a_paused_leader_that_wakes_gives_no_block_twice() {
    let bed = Bed::create(1).unwrap();
    let first = bed.start(0, &json!({})).unwrap();
    make_pool(&bed, "green", &spec("172.16.0.0/22")).unwrap();
    want(&bed, "plain-0", "green", 10).unwrap();
    has(&bed, "plain-0", 1).unwrap();
    let second = bed.start(1, &json!({})).unwrap();
    let mut nodes = 1;
    for _ in 0..2 {
        first.signal("STOP").unwrap();
        for number in nodes..nodes + 4 {
            want(&bed, &format!("plain-{number}"), "green", 10).unwrap();
        }
        nodes += 4;
        // The other one leads once the Lease is free; the first wakes into its work.
        has(&bed, &format!("plain-{}", nodes - 1), 1).unwrap();
        first.signal("CONT").unwrap();
        second.signal("STOP").unwrap();
        want(&bed, &format!("plain-{nodes}"), "green", 10).unwrap();
        nodes += 1;
        has(&bed, &format!("plain-{}", nodes - 1), 1).unwrap();
        second.signal("CONT").unwrap();
    }
    for number in 0..nodes {
        has(&bed, &format!("plain-{number}"), 1).unwrap();
    }
    assert_eq!(count(&bed).unwrap(), nodes);
    bed.finish().unwrap();
}

#[test]
fn settings_create_pools_and_advertise_them_and_the_policy_keeps_cidrs_in_use() {
    let bed = Bed::create(1).unwrap();
    let admin = bed.plane.server.admin();
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/towpath-operator";
    let mut rules = admin.get(role).unwrap().expect(200).unwrap();
    let more = [
        json!({"apiGroups": ["cilium.io"], "resources": ["ciliumpodippools"], "verbs": ["create"]}),
        json!({"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}),
    ];
    rules["rules"].as_array_mut().unwrap().extend(more);
    admin.put(role, &rules).unwrap().expect(200).unwrap();
    let settings = json!({"pools": {"advertise": true, "create": {
        "green": {"ipv4": {"cidrs": ["172.16.0.0/24", "172.17.0.0/24"], "maskSize": 28}}
    }}});
    let operator = bed.start(0, &settings).unwrap();
    want(&bed, "plain-0", "green", 10).unwrap();
    has(&bed, "plain-0", 1).unwrap();
    bed.add_node(0, 8).unwrap();
    let advertised = || {
        let node = admin.get("/api/v1/nodes/node-0")?.expect(200)?;
        let capacity = &node["status"]["capacity"];
        let has = |pool: &str| capacity[format!("towpath.dev/ipv4-{pool}")].clone();
        // 3 ENIs of 9 addresses; 31 free blocks of 14.
        let is_right = (has("default"), has("green")) == (json!("27"), json!("434"));
        check(is_right, || capacity.to_string())
    };
    eventually(SOON, "the Node has what it can have", advertised).unwrap();
    let manifest = read_manifest("kubernetes/admission/pool-in-use.yaml").unwrap();
    bed.plane.server.apply(&manifest).unwrap();
    let pool = format!("{POOLS}/green");
    let cidrs = |cidrs: &[&str]| json!({"spec": {"ipv4": {"cidrs": cidrs}}});
    let refused = || {
        let answer = admin.merge(&format!("{pool}?dryRun=All"), &cidrs(&["172.17.0.0/24"]))?;
        let text = answer.to_string();
        let named = "nodes have blocks of 172.16.0.0/24";
        check(answer.code == 422 && text.contains(named), || text)
    };
    eventually(SOON, "the CIDR in use stays", refused).unwrap();
    admin
        .merge(&pool, &cidrs(&["172.16.0.0/24"]))
        .unwrap()
        .expect(200)
        .unwrap();
    // It is created once: what a person made of it stays.
    assert!(operator.stop().unwrap());
    let again = bed.start(1, &settings).unwrap();
    want(&bed, "plain-1", "green", 10).unwrap();
    has(&bed, "plain-1", 1).unwrap();
    let now = admin.get(&pool).unwrap().expect(200).unwrap();
    assert_eq!(now["spec"]["ipv4"]["cidrs"], json!(["172.16.0.0/24"]));
    drop(again);
    bed.finish().unwrap();
}

#[test]
fn a_full_pool_is_named_on_the_node_and_a_refused_cidr_on_the_pool() {
    let bed = Bed::create(1).unwrap();
    let _operator = bed.start(0, &json!({})).unwrap();
    make_pool(&bed, "green", &spec("172.16.0.0/28")).unwrap();
    make_pool(&bed, "red", &spec("172.16.0.0/24")).unwrap();
    want(&bed, "plain-0", "green", 30).unwrap();
    has(&bed, "plain-0", 1).unwrap();
    let admin = bed.plane.server.admin();
    let reported = || {
        let node = admin.get(&format!("{NODES}/plain-0"))?.expect(200)?;
        let error = node["status"]["ipam"]["operator-status"]["error"].to_string();
        check(error.contains("PoolFull: CiliumPodIPPool green"), || error)
    };
    eventually(SOON, "the node says so", reported).unwrap();
    let published = || {
        let events = admin
            .get("/api/v1/namespaces/default/events")?
            .expect(200)?;
        let is_it = |event: &Value| {
            event["reason"] == "PoolRefused" && event["involvedObject"]["name"] == "red"
        };
        let mut all = events["items"].as_array().into_iter().flatten();
        check(all.any(is_it), || events.to_string())
    };
    eventually(Duration::from_mins(2), "an event names the pool", published).unwrap();
    bed.finish().unwrap();
}
