//! Pods of a plain pool: their addresses are unknown outside of the node, so they are seen with the
//! primary ENI's, in the VPC too.

use ipam::Family;
use ipnet::IpNet;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Asker, Echo, Protocol};
use testkit::fabric::{Fabric, Pod};

use crate::masq::{scene, snat, translated};
use crate::support::{CHANGE, within};

/// The node's blocks of the pool.
const BLOCKS: [&str; 2] = ["10.99.0.0/28", "fd99:99::/120"];

fn give_blocks(fabric: &Fabric) {
    let mut document = fabric.document();
    let pools = document["spec"]["ipam"]["pools"]["allocated"].as_array_mut();
    pools
        .unwrap()
        .push(json!({"pool": "mars", "cidrs": BLOCKS}));
    fabric.agent.write_document(&document).unwrap();
}

/// A pod with the address of a number in each block.
fn pod(fabric: &Fabric, number: usize) -> Pod {
    let [v4, v6] = BLOCKS.map(|block| {
        let block: IpNet = block.parse().unwrap();
        block.hosts().nth(number).unwrap()
    });
    let pod = Pod::create(
        fabric.node.name(),
        &format!("plain{number}"),
        [Some(v4), Some(v6)],
    )
    .unwrap();
    within(CHANGE, "the pool's blocks are known", || {
        fabric.add_endpoint(&pod)
    });
    pod
}

/// Checks the address with which a host of the VPC sees a pod.
fn seen_in_vpc(fabric: &Fabric, pod: &Pod, family: Family) {
    let server = Echo::telling(fabric.peer(family), 0).unwrap();
    let asker = Asker::open(pod.at(family), 0, server.address()).unwrap();
    assert_eq!(asker.ask(7).unwrap().ip(), snat(fabric, 0, family));
}

#[test]
fn a_plain_pools_pods_reach_everything_as_the_primary() {
    let (fabric, pods) = scene(json!({}));
    give_blocks(&fabric);
    let plain = [1, 2].map(|number| pod(&fabric, number));
    for pod in &plain {
        translated(&fabric, pod, 0);
        for family in Family::ALL {
            seen_in_vpc(&fabric, pod, family);
            for other in [&plain[0], &plain[1], &*pods[0], &*pods[1]] {
                if other.host_device() != pod.host_device() {
                    Protocol::Tcp
                        .exchange(pod.at(family), other.at(family))
                        .unwrap();
                    Protocol::Tcp
                        .exchange(other.at(family), pod.at(family))
                        .unwrap();
                }
            }
            Protocol::Icmp
                .exchange(pod.at(family), fabric.peer(family))
                .unwrap();
        }
    }
    // An unused address of the pool is unreachable.
    let nobody = "10.99.0.9";
    let ping = format!("ping -c 1 -W 1 {nobody}");
    plain[0].netns.run(&ping).unwrap_err();
    let explained = fabric.agent.ask(
        "GET",
        &format!(
            "/v1/masquerade/explain/tcp/{}/{}",
            plain[0].address(Family::V4),
            fabric.peer(Family::V4).address
        ),
        None,
    );
    let explained = explained.unwrap();
    check(explained["verdict"] == "translated", || {
        explained.to_string()
    })
    .unwrap();
    assert!(fabric.leaks().unwrap().is_empty());
    fabric.finish().unwrap();
}

#[test]
fn a_plain_pools_flows_outlive_the_agent() {
    let (mut fabric, _pods) = scene(json!({}));
    give_blocks(&fabric);
    let pod = pod(&fabric, 1);
    for family in Family::ALL {
        let server = Echo::telling(fabric.peer(family), 0).unwrap();
        let asker = Asker::open(pod.at(family), 0, server.address()).unwrap();
        let seen = asker.ask(7).unwrap();
        fabric.agent.kill().unwrap();
        assert_eq!(asker.ask(7).unwrap(), seen);
        fabric.start_agent().unwrap();
        assert_eq!(asker.ask(7).unwrap(), seen);
    }
    fabric.finish().unwrap();
}
