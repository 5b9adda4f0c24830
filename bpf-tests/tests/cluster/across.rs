//! Traffic between pods of a cluster, whatever their nodes and ENIs, and to what they use.

use std::collections::{BTreeMap, BTreeSet};

use ipam::Family;
use testkit::cluster::{Cluster, PodAt, SOON};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Host;
use testkit::fabric::source_check;
use testkit::fabric::traffic::Protocol;

/// The key of the ENI that owns a pod's address of a family.
pub(crate) fn owner(cluster: &Cluster, pod: &PodAt, family: Family) -> u16 {
    let worker = cluster.worker(&pod.node).unwrap();
    let address = pod.at(family).unwrap().address;
    let enis = cluster.enis(worker);
    let owner = enis
        .iter()
        .find(|eni| eni.blocks.iter().any(|block| block.contains(&address)));
    owner.unwrap().key
}

/// One pod of each ENI of each node, by their IPv4 addresses.
pub(crate) fn one_of_each_eni<'a>(cluster: &Cluster, pods: &'a [PodAt]) -> Vec<&'a PodAt> {
    let by_eni = pods
        .iter()
        .map(|pod| (owner(cluster, pod, Family::V4), pod));
    let by_eni: BTreeMap<u16, &PodAt> = by_eni.collect();
    by_eni.into_values().collect()
}

/// Every pod exchanges packets of every kind with every other one, with the nodes, the control plane's
/// host and a host of the VPC; what leaves a node leaves by the ENI that owns its source.
pub(crate) fn everywhere(cluster: &Cluster, pods: &[&PodAt]) {
    let fabric = &cluster.workers[0].fabric;
    for family in Family::ALL {
        for pod in pods {
            let from = pod.at(family).unwrap();
            for other in pods.iter().filter(|other| other.name != pod.name) {
                exchange_all(from, other.at(family).unwrap());
                if other.node != pod.node {
                    leaves_by_owners(cluster, [pod, other], family);
                }
            }
            for host in [Host::Peer, Host::Control] {
                exchange_all(from, fabric.host(host, family));
                exchange_all(fabric.host(host, family), from);
            }
            for worker in &cluster.workers {
                let node = worker.fabric.node_at(family).unwrap();
                exchange_all(from, node);
                exchange_all(node, from);
            }
        }
    }
}

#[track_caller]
pub(crate) fn exchange_all(from: testkit::fabric::Place<'_>, to: testkit::fabric::Place<'_>) {
    for protocol in Protocol::ALL {
        if let Err(error) = protocol.exchange(from, to) {
            panic!(
                "{protocol} from {} to {}: {error:#}",
                from.address, to.address
            );
        }
    }
}

/// Packets between pods of different nodes left by the ENIs that own their sources.
fn leaves_by_owners(cluster: &Cluster, pods: [&PodAt; 2], family: Family) {
    let router = &cluster.workers[0].fabric.vpc.router;
    let ends = pods.map(|pod| pod.at(family).unwrap().address);
    let enis = source_check::enis_between(router, ends[0], ends[1], &[]).unwrap();
    let owners = pods.map(|pod| owner(cluster, pod, family));
    assert_eq!(enis, BTreeSet::from(owners), "{ends:?}");
}

/// A pod requests a URL until an answer satisfies the condition.
pub(crate) fn asks_service(pod: &PodAt, url: &str, answers: &dyn Fn(&str) -> bool) {
    let ask = || {
        let command = format!("curl --silent --show-error --globoff --max-time 5 {url}");
        let answer = pod.netns.run(&command)?;
        check(answers(answer.trim()), || answer.clone())
    };
    eventually(SOON, &format!("{} asks {url}", pod.name), ask).unwrap();
}
