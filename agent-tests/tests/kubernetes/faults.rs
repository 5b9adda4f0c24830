//! Faults between the agent and the API server, injected by a proxy.

use std::time::{Duration, Instant};

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::proxy::{Does, Kind, Rule};

use crate::cluster::{Cluster, Guest, NODE, SOON, requested};

const POOLS: &str = "/apis/cilium.io/v2alpha1/ciliumpodippools";
/// Delay until the next attempt, in a header alone, as proxies send it.
const WAIT: Duration = Duration::from_secs(3);

impl Cluster {
    /// Changes the node's ENIs and the pools alternately, and waits until the agent has seen it.
    pub(crate) fn changes_are_seen(&self, turn: usize, after: &str) -> Result<()> {
        let admin = self.server.admin();
        let is_small = turn.is_multiple_of(2);
        let eni = self.eni(1);
        let mut addresses: Vec<_> = eni.blocks.iter().map(IpNet::addr).collect();
        if is_small {
            addresses.pop();
        }
        let enis = json!({eni.id(): {"addresses": addresses}});
        let status = json!({"status": {"eni": {"enis": enis}}});
        admin
            .merge(&format!("{NODE}/status"), &status)?
            .expect(200)?;
        if is_small {
            let subnet = format!("subnet-0fab{:013x}", eni.number);
            let pool = json!({
                "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
                "metadata": {"name": "blue", "annotations": {"ipam.towpath.dev/subnet-ids": subnet}},
                "spec": {"ipv4": {"cidrs": ["10.0.0.0/16"], "maskSize": 32}}
            });
            admin.post(POOLS, &pool)?.expect(201)?;
        } else {
            admin.delete(&format!("{POOLS}/blue"))?.expect(200)?;
        }
        let wanted = (is_small, addresses.len());
        let look = || {
            let pools = self.fabric.agent.ask("GET", "/v1/pools", None)?;
            let blocks = pools.as_array().into_iter().flatten().flat_map(|pool| {
                let blocks = pool["blocks"].as_array().into_iter().flatten();
                let of_eni = blocks.filter(|block| block["source"]["device"] == eni.id());
                of_eni.map(|_| pool["pool"] == "blue")
            });
            let blocks: Vec<_> = blocks.collect();
            let seen = (blocks.contains(&true), blocks.len());
            check(seen == wanted, || {
                format!("{seen:?}, not {wanted:?}: {pools}")
            })
        };
        eventually(SOON, &format!("it is seen after {after}"), look)?;
        Ok(())
    }
}

/// Answer of an API server to a watch from a version that it no longer has.
fn expired() -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410
    })
}

#[test]
fn the_cluster_is_followed_whatever_becomes_of_watches() {
    let cluster = Cluster::prepare(true).unwrap();
    let settings = json!({"kubernetes": {"watch-timeout": 4}});
    cluster.fabric.agent.configure(&settings).unwrap();
    let cluster = cluster.made_ready().unwrap();
    let proxy = cluster.proxy();
    cluster.changes_are_seen(0, "nothing").unwrap();

    proxy.end_watches();
    cluster.changes_are_seen(1, "all watches ended").unwrap();

    let refused = Does::Answer(410, vec![], expired());
    proxy.rule(Rule::next(4, Kind::Watch, refused));
    proxy.end_watches();
    cluster
        .changes_are_seen(2, "watches were refused as too old")
        .unwrap();

    let event = json!({"type": "ERROR", "object": expired()});
    proxy.rule(Rule::next(4, Kind::Watch, Does::Answer(200, vec![], event)));
    proxy.end_watches();
    cluster
        .changes_are_seen(3, "watches said that they are too old")
        .unwrap();

    let garbage = Does::Answer(200, vec![], json!("no event"));
    proxy.rule(Rule::next(4, Kind::Watch, garbage));
    proxy.end_watches();
    cluster
        .changes_are_seen(4, "watches said what nobody understands")
        .unwrap();

    proxy.rule(Rule::next(
        8,
        Kind::Any,
        Does::Answer(503, vec![], json!({})),
    ));
    proxy.end_watches();
    cluster
        .changes_are_seen(5, "the server was not there")
        .unwrap();

    let lost = Does::Lose { is_forwarded: true };
    proxy.rule(Rule::next(8, Kind::Any, lost));
    proxy.end_watches();
    cluster.changes_are_seen(6, "answers were lost").unwrap();

    proxy.freeze_watches();
    cluster.changes_are_seen(7, "watches went stale").unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn who_reads_waits_as_it_is_asked_to() {
    let cluster = Cluster::ready_behind_proxy().unwrap();
    let proxy = cluster.proxy();
    let header = ("retry-after", WAIT.as_secs().to_string());
    let busy = Does::Answer(429, vec![header], json!({"kind": "Status", "code": 429}));
    proxy.rule(Rule::all(Kind::Any, busy));
    let began = Instant::now();
    proxy.end_watches();
    for resource in [
        "/v2/ciliumnodes",
        "/ciliumpodippools",
        "/namespaces",
        "/services",
    ] {
        let tries = eventually(SOON, &format!("three tries of {resource}"), || {
            let mut tries = proxy.requests();
            tries.retain(|noted| noted.at >= began && noted.request.path.ends_with(resource));
            check(tries.len() >= 3, || format!("{tries:?}"))?;
            Ok(tries)
        });
        let (tries, _) = tries.unwrap();
        for pair in tries.windows(2) {
            let apart = pair[1].at - pair[0].at;
            assert!(apart >= WAIT, "{resource}: {apart:?}");
        }
    }
    proxy.clear();
    cluster
        .changes_are_seen(0, "the server was too busy")
        .unwrap();
    cluster.fabric.finish().unwrap();
}

/// A pod that waits for a pool makes a write urgent, and still the write must wait.
fn an_urgent_write_waits(cluster: &Cluster) -> Guest {
    let proxy = cluster.proxy();
    let header = ("retry-after", WAIT.as_secs().to_string());
    let busy = Does::Answer(429, vec![header], json!({"kind": "Status", "code": 429}));
    proxy.rule(Rule::all(Kind::ChangeNode, busy));
    let began = Instant::now();
    let blue = json!({"ipam.cilium.io/ip-pool": "blue"});
    let pod = cluster.pod("plain", "one", &blue).unwrap();
    let tries = eventually(SOON, "three tries", || {
        assert_ne!(pod.try_add(&cluster.fabric).0, 200);
        let writes = proxy.writes();
        let tries = writes.into_iter().filter(|write| write.at >= began);
        let tries: Vec<_> = tries
            .filter(|write| write.request.is(Kind::ChangeNode))
            .collect();
        check(tries.len() >= 3, || format!("{tries:?}"))?;
        Ok(tries)
    });
    let (tries, _) = tries.unwrap();
    for pair in tries.windows(2) {
        let apart = pair[1].at - pair[0].at;
        assert!(apart >= WAIT, "{apart:?}");
    }
    proxy.clear();
    cluster
        .node_is("it is written in the end", |node| {
            requested(node, "blue") == Some(1)
        })
        .unwrap();
    pod
}

/// The result of a write is unknown, whether it succeeded or not.
fn a_write_of_unknown_result_is_made_once(cluster: &Cluster) -> [Guest; 2] {
    let proxy = cluster.proxy();
    [(1, true), (2, false)].map(|(number, is_forwarded)| {
        let lost = Does::Lose { is_forwarded };
        proxy.rule(Rule::next(1, Kind::ChangeNode, lost));
        let pod = cluster
            .pod("plain", &format!("lost-{number}"), &json!({}))
            .unwrap();
        pod.add(&cluster.fabric);
        let wanted = 8 + number;
        cluster
            .node_is("its demand is written", |node| {
                requested(node, "default") == Some(wanted)
            })
            .unwrap();
        pod
    })
}

/// Another client writes first: no change may be lost.
fn no_change_of_another_is_lost(cluster: &Cluster) -> Guest {
    let proxy = cluster.proxy();
    let held = proxy.hold(Kind::ChangeNode, false);
    let pod = cluster.pod("plain", "held", &json!({})).unwrap();
    pod.add(&cluster.fabric);
    held.wait(SOON).unwrap();
    let label = json!({"metadata": {"labels": {"somebody": "else"}}});
    cluster
        .server
        .admin()
        .merge(NODE, &label)
        .unwrap()
        .expect(200)
        .unwrap();
    let before = Instant::now();
    held.release();
    let node = cluster
        .node_is("it is written after the conflict", |node| {
            requested(node, "default") == Some(11)
        })
        .unwrap();
    assert_eq!(node["metadata"]["labels"]["somebody"], "else");
    let codes: Vec<_> = proxy
        .wait_for_writes(Kind::ChangeNode, 2, before, SOON)
        .unwrap()
        .into_iter()
        .map(|write| write.code)
        .collect();
    assert_eq!(codes[..2], [Some(409), Some(200)]);
    pod
}

#[test]
fn writes_wait_as_they_are_asked_to_and_none_is_lost_or_made_twice() {
    let cluster = Cluster::ready_behind_proxy().unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    cluster
        .node_is("8 to spare", |node| requested(node, "default") == Some(8))
        .unwrap();

    let waiting = an_urgent_write_waits(&cluster);
    let lost = a_write_of_unknown_result_is_made_once(&cluster);
    let held = no_change_of_another_is_lost(&cluster);
    cluster.fabric.finish().unwrap();
    drop((waiting, lost, held));
}

/// Webhooks and service managers set variables for other programs in every program's environment.
#[test]
fn proxies_of_the_environment_do_not_come_between() {
    let mut cluster = Cluster::prepare(false).unwrap();
    let environment = [
        ("HTTPS_PROXY", "http://10.0.0.99:3128"),
        ("https_proxy", "proxy.corp:3128"),
        ("ALL_PROXY", "socks5://10.0.0.99"),
        ("http_proxy", "http://10.0.0.99:3128"),
        ("NO_PROXY", "localhost,,"),
    ];
    let Cluster { fabric, .. } = &mut cluster;
    fabric.agent.start(&fabric.node, &environment).unwrap();
    // The agent creates it, from the API server and the metadata service.
    cluster.node().unwrap();
    cluster.operate().unwrap();
    cluster.wait_until_ready().unwrap();
    cluster.fabric.finish().unwrap();
}
