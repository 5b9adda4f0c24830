//! `ipam.mode: crd`: single addresses, and their release.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::proxy::Kind;

use crate::cluster::{Cluster, Guest, NODE, SOON, requested};

/// A node in that mode, with these addresses of ENI 1 in its pool.
pub(crate) fn cluster(count: usize) -> (Cluster, Vec<IpAddr>) {
    in_mode(Cluster::create().unwrap(), count)
}

/// Puts a cluster, whose agent has run in the other mode, into that mode.
fn in_mode(mut cluster: Cluster, count: usize) -> (Cluster, Vec<IpAddr>) {
    cluster.node().unwrap();
    let mode = json!({"kubernetes": {"ipam": {"mode": "crd"}}});
    cluster.fabric.agent.configure(&mode).unwrap();
    cluster.restart().unwrap();
    cluster.operate().unwrap();
    let blocks = cluster.eni(1).blocks.iter();
    let addresses = blocks.map(IpNet::addr).filter(IpAddr::is_ipv4);
    let addresses: Vec<_> = addresses.take(count).collect();
    assert_eq!(addresses.len(), count);
    pool(&cluster, &addresses);
    cluster.wait_until_ready().unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    (cluster, addresses)
}

/// Gives addresses of ENI 1 to the node, as the operator does.
pub(crate) fn pool(cluster: &Cluster, addresses: &[IpAddr]) {
    let id = cluster.eni(1).id();
    let entries = addresses.iter();
    let entries = entries.map(|address| (address.to_string(), json!({"resource": id})));
    let entries: Map<_, _> = entries.collect();
    merge(cluster, NODE, &json!({"spec": {"ipam": {"pool": entries}}}));
}

/// Removes an address from the pool, as the operator does.
fn take_out(cluster: &Cluster, address: IpAddr) {
    let pool = json!({address.to_string(): null});
    merge(cluster, NODE, &json!({"spec": {"ipam": {"pool": pool}}}));
}

/// Writes the state of an address in the release handshake, as the operator does.
fn say(cluster: &Cluster, address: IpAddr, state: &str) {
    let release = json!({address.to_string(): state});
    let status = json!({"status": {"ipam": {"release-ips": release}}});
    merge(cluster, &format!("{NODE}/status"), &status);
}

fn merge(cluster: &Cluster, path: &str, patch: &Value) {
    let answer = cluster.server.admin().merge(path, patch).unwrap();
    answer.expect(200).unwrap();
}

/// Waits until an address has a state in the handshake; `None`: no state.
fn stands(cluster: &Cluster, address: IpAddr, state: Option<&str>) {
    let what = format!("{address} is {state:?}");
    let is =
        |node: &Value| node["status"]["ipam"]["release-ips"][address.to_string()].as_str() == state;
    cluster.node_is(&what, is).unwrap();
}

/// Adds a pod; returns the pod and its address.
fn add(cluster: &Cluster, name: &str) -> (Guest, IpAddr) {
    let pod = cluster.pod("plain", name, &json!({})).unwrap();
    let (address, eni) = pod.add(&cluster.fabric);
    assert_eq!(eni, 1);
    (pod, address.parse().unwrap())
}

#[test]
fn pods_get_the_addresses_of_the_pool_and_the_operator_is_told() {
    let (cluster, addresses) = cluster(2);
    let (_one, first) = add(&cluster, "one");
    let (_two, second) = add(&cluster, "two");
    assert!(first != second && addresses.contains(&first) && addresses.contains(&second));
    let id = cluster.eni(1).id();
    let used = json!({
        first.to_string(): {"owner": "plain/one", "resource": id},
        second.to_string(): {"owner": "plain/two", "resource": id}
    });
    let node = cluster
        .node_is("both are published", |node| {
            node["status"]["ipam"]["used"] == used
        })
        .unwrap();
    assert_eq!(requested(&node, "default"), None, "{node}");
    // The ENI has more addresses, which are not for pods.
    let third = cluster.pod("plain", "three", &json!({})).unwrap();
    let (_, answer) = third.try_add(&cluster.fabric);
    assert_eq!(answer["error"]["code"], "pool-exhausted", "{answer}");
    let blocks = cluster.eni(1).blocks.iter().map(IpNet::addr);
    let new = blocks.filter(IpAddr::is_ipv4).nth(2).unwrap();
    pool(&cluster, &[new]);
    let given = || {
        let (status, answer) = third.try_add(&cluster.fabric);
        check(status == 200, || answer.to_string())?;
        Ok(answer["addresses"][0]["address"].clone())
    };
    let (given, _) = eventually(SOON, "the third gets the new one", given).unwrap();
    assert_eq!(given, new.to_string());
    third.delete(&cluster.fabric);
    cluster
        .node_is("it has gone", |node| node["status"]["ipam"]["used"] == used)
        .unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn addresses_go_back_only_when_nobody_has_them_and_nobody_gets_them_meanwhile() {
    let (mut cluster, addresses) = cluster(3);
    let (_one, used) = add(&cluster, "one");
    let mut free = addresses.into_iter().filter(|address| *address != used);
    let (going, staying) = (free.next().unwrap(), free.next().unwrap());
    say(&cluster, used, "marked-for-release");
    say(&cluster, going, "marked-for-release");
    stands(&cluster, used, Some("do-not-release"));
    stands(&cluster, going, Some("ready-for-release"));
    // The operator withdraws its request.
    merge(
        &cluster,
        &format!("{NODE}/status"),
        &json!({"status": {"ipam": {"release-ips": {used.to_string(): null}}}}),
    );
    cluster.restart().unwrap();
    cluster.wait_until_ready().unwrap();
    let (_two, second) = add(&cluster, "two");
    assert_eq!(second, staying);
    let late = cluster.pod("plain", "three", &json!({})).unwrap();
    let nothing = |why: &str| {
        let (_, answer) = late.try_add(&cluster.fabric);
        assert_eq!(answer["error"]["code"], "pool-exhausted", "{why}: {answer}");
    };
    nothing("ready");
    say(&cluster, going, "released");
    // An earlier agent had agreed to release it, and now a pod has it.
    say(&cluster, staying, "ready-for-release");
    stands(&cluster, staying, Some("do-not-release"));
    stands(&cluster, going, Some("released"));
    nothing("released");
    take_out(&cluster, going);
    stands(&cluster, going, None);
    nothing("gone");
    // The address comes back later.
    pool(&cluster, &[going]);
    let again = || {
        let (status, answer) = late.try_add(&cluster.fabric);
        check(status == 200, || answer.to_string())
    };
    eventually(SOON, "it can be given again", again).unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn what_an_agent_in_this_mode_has_left_is_cleared_in_the_other() {
    let cluster = Cluster::ready().unwrap();
    let used = json!({"10.0.0.99": {"owner": "a/b", "resource": "eni-1"}});
    let status = json!({"status": {"ipam": {"used": used}}});
    merge(&cluster, &format!("{NODE}/status"), &status);
    cluster
        .node_is("nobody has it", |node| {
            let used = node["status"]["ipam"]["used"].as_object();
            used.is_none_or(Map::is_empty) && requested(node, "default") == Some(8)
        })
        .unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn it_can_be_killed_at_each_write_of_its_status_and_nothing_in_use_is_offered() {
    let mut cluster = Cluster::prepare(true).unwrap();
    cluster.start().unwrap();
    let (mut cluster, addresses) = in_mode(cluster, 5);
    let began = Instant::now();
    let mut free: BTreeSet<IpAddr> = addresses.into_iter().collect();
    let mut guests: Vec<(Guest, IpAddr)> = Vec::new();
    for is_forwarded in [false, true] {
        let name = format!("pod-{}", guests.len());
        let guest = cluster.pod("plain", &name, &json!({})).unwrap();
        let mut given = None;
        cluster.kill_at(Kind::ChangeStatus, is_forwarded, |cluster| {
            given = guest.add(&cluster.fabric).0.parse().ok();
        });
        cluster.again();
        let given: IpAddr = given.unwrap();
        free.remove(&given);
        let owner = json!(format!("plain/{name}"));
        cluster
            .node_is("the owner of the address is published", |node| {
                node["status"]["ipam"]["used"][given.to_string()]["owner"] == owner
            })
            .unwrap();
        assert_eq!(guest.add(&cluster.fabric).0, given.to_string());
        guests.push((guest, given));

        // A free address is released.
        let going = free.pop_first().unwrap();
        cluster.kill_at(Kind::ChangeStatus, is_forwarded, |cluster| {
            say(cluster, going, "marked-for-release");
        });
        cluster.again();
        stands(&cluster, going, Some("ready-for-release"));
        say(&cluster, given, "marked-for-release");
        stands(&cluster, given, Some("do-not-release"));
        say(&cluster, going, "released");
        take_out(&cluster, going);
        stands(&cluster, going, None);
    }
    let in_use: Vec<String> = guests.iter().map(|(_, given)| given.to_string()).collect();
    // The proxy notes a write after its answer, so the object can show the last one before.
    let writes = cluster
        .proxy()
        .wait_for_writes(Kind::ChangeStatus, 8, began, SOON);
    let writes = writes.unwrap();
    let sent: Vec<&Value> = writes.iter().map(|write| &write.request.body).collect();
    for body in &sent {
        for address in &in_use {
            let ipam = &body["status"]["ipam"];
            assert_ne!(ipam["release-ips"][address], "ready-for-release", "{body}");
            // A merge patch removes by null.
            let used = ipam["used"].as_object();
            let lost = used.and_then(|used| used.get(address));
            assert_ne!(lost, Some(&Value::Null), "{body}");
        }
    }
    cluster.fabric.finish().unwrap();
}
