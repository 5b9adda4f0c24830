//! The agent killed at each of its writes, before and after the server has it; and how often it writes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde_json::{Value, json};
use testkit::fabric::document::document;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Eni;
use testkit::kubernetes::proxy::Kind;

use crate::cluster::{Cluster, Guest, NODE, SOON, allocated, requested};

impl Cluster {
    /// Kills the agent when it makes a write, and starts it again.
    pub(crate) fn kill_at(
        &mut self,
        kind: Kind,
        is_forwarded: bool,
        change: impl FnOnce(&mut Self),
    ) -> Value {
        let held = self.proxy().hold(kind, is_forwarded);
        change(self);
        let written = held.wait(SOON).unwrap();
        self.fabric.agent.kill().unwrap();
        drop(held);
        written.body
    }

    /// Starts it again, and waits until it gives addresses.
    pub(crate) fn again(&mut self) {
        self.start().unwrap();
        self.wait_until_ready().unwrap();
    }
}

/// The blocks of the ENIs in an object's status.
fn blocks(node: &Value) -> BTreeSet<String> {
    let enis = node["status"]["eni"]["enis"].as_object().unwrap();
    let addresses = enis
        .values()
        .flat_map(|eni| eni["addresses"].as_array().unwrap());
    addresses
        .map(|address| address.as_str().unwrap().parse::<IpAddr>().unwrap())
        .map(|address| IpNet::from(address).to_string())
        .collect()
}

/// The demand rises by a pod, and the agent is killed when it writes that. Returns the pod and its
/// address.
fn a_kill_loses_no_demand(
    cluster: &mut Cluster,
    number: u64,
    is_forwarded: bool,
    lists_all: impl Fn(&Value) -> bool,
) -> (Guest, String) {
    let guest = cluster
        .pod("plain", &format!("more-{number}"), &json!({}))
        .unwrap();
    let mut address = String::new();
    cluster.kill_at(Kind::ChangeNode, is_forwarded, |cluster| {
        address = guest.add(&cluster.fabric).0;
    });
    cluster.again();
    let wanted = 8 + 2 + number + 1;
    let asks = |node: &Value| requested(node, "default") == Some(wanted) && lists_all(node);
    cluster
        .node_is("what is wanted is known again", asks)
        .unwrap();
    assert_eq!(
        guest.add(&cluster.fabric).0,
        address,
        "it keeps its address"
    );
    (guest, address)
}

/// A free address is removed, and the agent is killed when it writes that.
fn a_kill_keeps_no_removed_address(
    cluster: &mut Cluster,
    eni: &mut Eni,
    is_forwarded: bool,
    in_use: &[String],
) {
    let is_free = |block: &IpNet| !in_use.contains(&block.to_string());
    let position = eni.blocks.iter().rposition(is_free);
    eni.blocks.remove(position.unwrap());
    let left: Vec<_> = eni.blocks.iter().map(IpNet::addr).collect();
    let enis = json!({eni.id(): {"addresses": left}});
    let status = json!({"status": {"eni": {"enis": enis}}});
    cluster.kill_at(Kind::ChangeNode, is_forwarded, |cluster| {
        let path = format!("{NODE}/status");
        let answer = cluster.server.admin().merge(&path, &status).unwrap();
        answer.expect(200).unwrap();
    });
    cluster.again();
    let is_right = |node: &Value| {
        let listed: BTreeSet<_> = allocated(node, "default").into_iter().collect();
        listed == blocks(node)
    };
    cluster
        .node_is("what is there is listed, and no more", is_right)
        .unwrap();
}

#[test]
fn it_can_be_killed_at_each_write_and_no_document_ever_lies() {
    let mut cluster = Cluster::prepare(true).unwrap();
    let start = |cluster: &mut Cluster| cluster.start().unwrap();
    cluster.kill_at(Kind::MakeNode, false, start);
    assert_eq!(cluster.server.admin().get(NODE).unwrap().code, 404);
    cluster.kill_at(Kind::MakeNode, true, start);
    let uid = cluster.node().unwrap()["metadata"]["uid"].clone();
    cluster.operate().unwrap();
    let all = blocks(&document(&cluster.fabric.enis));
    cluster.again();
    cluster.namespace("plain", &json!({})).unwrap();
    let guests = ["one", "two"].map(|name| cluster.pod("plain", name, &json!({})).unwrap());
    let addresses = guests.each_ref().map(|guest| guest.add(&cluster.fabric).0);
    let in_use = addresses.clone().map(|address| format!("{address}/32"));
    let lists_all = |node: &Value| {
        let listed: BTreeSet<_> = allocated(node, "default").into_iter().collect();
        in_use.iter().all(|block| listed.contains(block)) && listed.is_subset(&all)
    };
    cluster.node_is("both are listed", lists_all).unwrap();
    let began = Instant::now();

    let mut pods: Vec<Guest> = Vec::new();
    let mut eni = cluster.eni(1).clone();
    for is_forwarded in [false, true] {
        let number = u64::try_from(pods.len()).unwrap();
        let (guest, address) =
            a_kill_loses_no_demand(&mut cluster, number, is_forwarded, lists_all);
        assert_eq!(cluster.node().unwrap()["metadata"]["uid"], uid);
        pods.push(guest);
        let used = [&in_use[..], &[format!("{address}/32")]].concat();
        a_kill_keeps_no_removed_address(&mut cluster, &mut eni, is_forwarded, &used);
    }
    for (guest, address) in guests.iter().zip(&addresses) {
        assert_eq!(guest.add(&cluster.fabric).0, *address);
    }
    // Whatever was sent, whether it arrived or not.
    // The proxy notes a write after its answer, so the object can show the last one before.
    let sent = || {
        let mut sent = cluster.proxy().writes();
        sent.retain(|write| write.at >= began);
        check(sent.len() >= 4, || format!("{sent:?}"))?;
        Ok(sent)
    };
    let (sent, _) = eventually(SOON, "four writes", sent).unwrap();
    for write in &sent {
        let body = &write.request.body;
        let has_blocks = body.pointer("/spec/ipam/pools/allocated").is_some();
        assert!(!has_blocks || lists_all(body), "{body}");
    }
    cluster.fabric.finish().unwrap();
}

#[test]
fn pods_that_come_and_go_make_no_storm_of_writes() {
    const INTERVAL: Duration = Duration::from_secs(5);
    let cluster = Cluster::prepare(true).unwrap();
    let settings = json!({"kubernetes": {"update-interval": INTERVAL.as_secs()}});
    cluster.fabric.agent.configure(&settings).unwrap();
    let cluster = cluster.made_ready().unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    let guests: Vec<_> = (0..4)
        .map(|number| {
            let name = format!("guest-{number}");
            cluster.pod("plain", &name, &json!({})).unwrap()
        })
        .collect();
    let began = Instant::now();
    let (mut adds, mut seconds) = (0_u32, 0.0);
    while seconds < 4.5 * INTERVAL.as_secs_f64() {
        for guest in &guests {
            guest.add(&cluster.fabric);
            adds += 1;
        }
        // One stays at times: the demand is another one at every look.
        let stays = usize::try_from(adds).unwrap() / guests.len() % 2;
        guests
            .iter()
            .skip(stays)
            .for_each(|guest| guest.delete(&cluster.fabric));
        seconds = began.elapsed().as_secs_f64();
    }
    let writes = cluster.proxy().writes();
    let writes = writes.iter().filter(|write| write.at >= began).count();
    let minutes = seconds / 60.0;
    println!(
        "{adds} adds and {writes} writes in {seconds:.1} s: {:.1} writes per minute",
        f64::from(u32::try_from(writes).unwrap()) / minutes
    );
    let most = began.elapsed().as_secs() / INTERVAL.as_secs() + 2;
    assert!(writes as u64 <= most, "{writes} writes, at most {most}");
    assert!(writes >= 2, "it still writes");
    cluster.fabric.finish().unwrap();
}
