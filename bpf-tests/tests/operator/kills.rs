//! Operators that are killed at random moments, in a cloud that loses answers, while nodes want
//! addresses of two pools and give some back.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use testkit::cloud::audit::published;
use testkit::fabric::eventually::{check, eventually};
use testkit::random::Random;

use super::bed::{Bed, SOON, node_name};
use super::pools::{POOLS, pool, with_groups};

/// Nodes.
const NODES: usize = 4;
/// Of this many rounds one lasts until addresses go back.
const LONG: usize = 10;
/// Addresses of the pool `default` that fit onto two ENIs of a node, which leaves one for `blue`.
const MOST: usize = 18;
/// Addresses are there within this time, though the operator may have to wait for several things in
/// a row: 20 seconds for those that go back, and half a minute each for the effect of a call without
/// an answer and for the ENIs of client tokens that a killed one used.
const CLAIMED: Duration = Duration::from_mins(2);

/// A node's agent: its demand, and the addresses that it has claimed by its last write.
#[derive(Default)]
struct Agent {
    claimed: BTreeSet<String>,
}

impl Agent {
    /// Claims some of the addresses that the object shows, and wants so many, unless the operator
    /// writes first.
    fn write(&mut self, bed: &Bed, number: usize, (default, blue): (usize, usize)) -> Result<()> {
        let object = bed.node(number)?;
        let shown = published(&object).into_iter();
        let claims: BTreeSet<String> = shown
            .map(|(_, it)| format!("{it}/32"))
            .take(default)
            .collect();
        let patch = json!({
            "metadata": {
                "resourceVersion": object["metadata"]["resourceVersion"],
                "annotations": {"ipam.towpath.dev/agent": "1.0.0"}
            },
            "spec": {"ipam": {"pools": {
                "requested": [
                    {"pool": "default", "needed": {"ipv4-addrs": default}},
                    {"pool": "blue", "needed": {"ipv4-addrs": blue}}
                ],
                "allocated": [{"pool": "default", "cidrs": claims}]
            }}}
        });
        let path = format!("{}/{}", super::bed::NODES, node_name(number));
        let written = bed.plane.server.admin().merge(&path, &patch)?;
        if written.code == 200 {
            self.claimed = claims;
        }
        Ok(())
    }

    /// Checks that EC2 has taken no claimed address.
    fn check(&self, bed: &Bed) {
        let attached: BTreeSet<String> = bed.cloud.peek(|cloud| {
            let blocks = cloud
                .interfaces()
                .flat_map(|eni| eni.addresses.blocks.iter());
            blocks.map(ToString::to_string).collect()
        });
        let lost: Vec<_> = self.claimed.difference(&attached).collect();
        assert!(lost.is_empty(), "claimed and unassigned: {lost:?}");
    }
}

/// The security groups of the ENIs of the pool `blue`.
fn groups_of_blue(bed: &Bed) -> BTreeSet<Vec<String>> {
    bed.cloud.peek(|cloud| {
        let of_pool = |eni: &&std::sync::Arc<ec2_fake::Eni>| {
            eni.tags.get("ipam.towpath.dev/pool").map(String::as_str) == Some("blue")
        };
        let enis = cloud.interfaces().filter(of_pool);
        enis.map(|eni| eni.groups.clone()).collect::<BTreeSet<_>>()
    })
}

#[test]
fn kills_at_any_moment_leave_no_eni_and_no_address_of_two_nodes() {
    let rounds = if std::env::var_os("TOWPATH_FULL").is_some() {
        1000
    } else {
        15
    };
    let bed = Bed::of_world(with_groups(NODES)).unwrap();
    let blue = pool("blue", "subnet-2", "sg-blue");
    bed.plane
        .server
        .admin()
        .post(POOLS, &blue)
        .unwrap()
        .expect(201)
        .unwrap();
    let settings = json!({
        "log-level": "debug", "addresses": {"release": "on", "release-delay": "1s"}
    });
    let mut agents: Vec<Agent> = (0..NODES).map(|_| Agent::default()).collect();
    for number in 0..NODES {
        bed.add_node(number, 8).unwrap();
    }
    let mut random = Random::new(29);
    for round in 0..rounds {
        let operator = bed.start(0, &settings).unwrap();
        for _ in 0..2 {
            let node = random.below(NODES);
            let wanted = (1 + random.below(MOST), random.below(6));
            agents[node].write(&bed, node, wanted).unwrap();
        }
        if round % LONG == LONG - 1 {
            begin_release(&bed, &mut agents[round % NODES], round % NODES).unwrap();
        }
        lose_an_answer(&bed, &mut random).unwrap();
        // The moment of the kill varies; the test waits for no event.
        let moment = 300 + 100 * u64::try_from(random.below(30)).unwrap();
        thread::sleep(Duration::from_millis(moment));
        operator.kill().unwrap();
        bed.free_lease().unwrap();
        for agent in &agents {
            agent.check(&bed);
        }
        println!("round {round}: killed after {moment} ms");
    }
    let operator = bed.start(0, &settings).unwrap();
    for (number, agent) in agents.iter_mut().enumerate() {
        let write = || agent.write(&bed, number, (MOST, 6));
        eventually(SOON, "the agent writes", write).unwrap();
    }
    for number in 0..NODES {
        bed.node_has(number, MOST + 6).unwrap();
    }
    for agent in &agents {
        agent.check(&bed);
    }
    assert_eq!(groups_of_blue(&bed), [vec!["sg-blue".to_owned()]].into());
    bed.finish().unwrap();
    drop(operator);
}

/// An agent claims all that its node can have and then a single address, until EC2 takes others
/// back.
fn begin_release(bed: &Bed, agent: &mut Agent, number: usize) -> Result<()> {
    for wanted in [MOST, 1] {
        let claim = || {
            agent.write(bed, number, (wanted, 0))?;
            let count = agent.claimed.len();
            check(count == wanted, || format!("{count} of {wanted} claims"))
        };
        let written = eventually(CLAIMED, "claims are written", claim);
        written.with_context(|| story(bed, number))?;
    }
    let calls = || {
        let is_release = |action: &str| action == "UnassignPrivateIpAddresses";
        bed.cloud
            .peek(|cloud| cloud.log().filter(|it| is_release(it.action)).count())
    };
    let before = calls();
    // A leader that came after the last write waits for another one.
    let mut wanted = 1;
    let begun = || {
        wanted = 3 - wanted;
        agent.write(bed, number, (wanted, 0))?;
        check(calls() > before, || story(bed, number))
    };
    eventually(SOON, "addresses go back", begun).map(drop)
}

/// A node's object, all ENIs and the last calls of EC2, and the operator's log.
fn story(bed: &Bed, number: usize) -> String {
    let calls = bed.cloud.peek(|cloud| {
        let log: Vec<_> = cloud.log().collect();
        let calls = log.iter().rev().take(60);
        let calls = calls.map(|it| format!("{} {} {:?}", it.at, it.action, it.error));
        calls.collect::<Vec<_>>().join("\n")
    });
    let enis = bed.cloud.peek(|cloud| {
        let enis = cloud.interfaces();
        let enis = enis.map(|it| format!("{} {:?} {:?}", it.id, it.attachment, it.addresses));
        enis.collect::<Vec<_>>().join("\n")
    });
    let node = bed.node(number).unwrap_or_default();
    format!(
        "{node:#}\n{enis}\nlast calls first:\n{calls}\n{}",
        bed.logs()
    )
}

/// Makes the cloud lose the answer to one of the next calls of an action.
fn lose_an_answer(bed: &Bed, random: &mut Random) -> Result<()> {
    let actions = [
        "CreateNetworkInterface",
        "AttachNetworkInterface",
        "AssignPrivateIpAddresses",
        "ModifyNetworkInterfaceAttribute",
        "UnassignPrivateIpAddresses",
    ];
    let action = actions[random.below(actions.len())];
    let fault = json!({"action": action, "skip": random.below(2), "kind": "answer-lost"});
    let fault = serde_json::from_value(fault)?;
    bed.cloud.with(|cloud, _| cloud.inject(fault));
    Ok(())
}
