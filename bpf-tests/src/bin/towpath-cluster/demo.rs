//! The demo of a cluster whose nodes a real operator gets ENIs for, from EC2 as the fake plays it.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use ipam::Family;
use testkit::cloud::{Site, SiteSpec, audit};
use testkit::cluster::{Cluster, ClusterSpec, PodAt, SOON, deployment};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Host;
use testkit::fabric::source_check;
use testkit::fabric::traffic::Protocol;
use testkit::interrupt;
use testkit::kubernetes::ProxyMode;

/// The pods that come and go.
const PODS: u32 = 40;

/// Shows pods come, ENIs appear, packets go and pods leave.
///
/// # Errors
/// When something of it is not as it should be.
pub(crate) fn run() -> Result<()> {
    interrupt::watch()?;
    let started = Instant::now();
    let spec = ClusterSpec {
        progress: |step| println!("==> {step}"),
        ..ClusterSpec::in_cloud(ProxyMode::Nftables, SiteSpec::default())
    };
    let cluster = Cluster::ready(&spec)?;
    show(&cluster).with_context(|| cluster.logs())?;
    cluster.finish()?;
    let seconds = started.elapsed().as_secs();
    println!("\nEverything was as it should be, in {seconds} seconds.");
    Ok(())
}

fn show(cluster: &Cluster) -> Result<()> {
    let site = cluster.site.as_ref().context("there is a cloud")?;
    enis(cluster);
    println!("\n==> {PODS} pods come");
    cluster.apply(&[deployment("default", "web", PODS)])?;
    let pods = scaled(cluster, PODS)?;
    enis(cluster);
    println!("\n==> packets go");
    packets(cluster, &pods)?;
    println!("\n==> the pods leave");
    scaled(cluster, 0)?;
    calls(site);
    zeros(cluster, site)
}

/// Scales the pods, and shows how long that took.
fn scaled(cluster: &Cluster, replicas: u32) -> Result<Vec<PodAt>> {
    interrupt::check()?;
    let started = Instant::now();
    let count = format!("--replicas={replicas}");
    let kubectl = cluster.kubectl()?;
    kubectl.succeed(&["scale", "deployment/web", &count])?;
    cluster.rolled_out("default", "deployment/web")?;
    let pods = cluster.pods("default", "app=web", usize::try_from(replicas)?)?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{replicas} pods run after {seconds:.1} seconds.");
    Ok(pods)
}

/// Shows the nodes' ENIs, with the IPv4 addresses that each has for pods.
fn enis(cluster: &Cluster) {
    println!("\n{:<16} {:<5} {:<23} FOR PODS", "NODE", "INDEX", "ENI");
    for worker in &cluster.workers {
        for eni in cluster.enis(worker) {
            let blocks = eni.blocks.iter();
            let addresses = blocks.filter(|block| Family::of(block.addr()) == Family::V4);
            println!(
                "{:<16} {:<5} {:<23} {:>8}",
                worker.name(),
                eni.number,
                eni.id(),
                addresses.count()
            );
        }
    }
}

/// A pod of each node exchanges packets with one of the other node, and with a host outside.
fn packets(cluster: &Cluster, pods: &[PodAt]) -> Result<()> {
    let of = |node: &str| pods.iter().find(|pod| pod.node == node);
    let names = cluster.workers.iter().map(testkit::cluster::Worker::name);
    let chosen = names.map(|name| of(&name).with_context(|| format!("{name} has no pod")));
    let chosen: Vec<&PodAt> = chosen.collect::<Result<_>>()?;
    let first = cluster.workers.first().context("a cluster has a node")?;
    for family in Family::ALL {
        let outside = first.fabric.host(Host::Outside, family);
        for pod in &chosen {
            let others = chosen.iter().filter(|other| other.node != pod.node);
            let others = others.map(|other| other.at(family));
            for place in others.chain([Ok(outside)]) {
                let (from, to) = (pod.at(family)?, place?);
                for protocol in Protocol::ALL {
                    protocol.exchange(from, to)?;
                }
                println!("{} -> {}: TCP, UDP and ICMP", from.address, to.address);
            }
        }
    }
    Ok(())
}

/// Shows the calls of EC2 by action.
fn calls(site: &Site) {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    site.cloud.peek(|cloud| {
        for call in cloud.log() {
            let count = counts.entry(call.action).or_default();
            count.0 += 1;
            count.1 += usize::from(call.error.is_some());
        }
    });
    println!("\n{:<34} {:>5} {:>8}", "CALL OF EC2", "CALLS", "REFUSED");
    for (action, (calls, refused)) in counts {
        println!("{action:<34} {calls:>5} {refused:>8}");
    }
}

/// Shows what must be zero in the end.
fn zeros(cluster: &Cluster, site: &Site) -> Result<()> {
    let look = || {
        let loose = site.cloud.peek(audit::loose);
        check(loose.is_empty(), || {
            format!("ENIs that nothing holds: {loose:?}")
        })
    };
    eventually(SOON, "no ENI is loose", look)?;
    let nodes = cluster.admin().get("/apis/cilium.io/v2/ciliumnodes")?;
    let nodes = nodes.expect(200)?;
    site.cloud.peek(|cloud| audit::addresses(cloud, &nodes))?;
    let first = cluster.workers.first().context("a cluster has a node")?;
    let foreign: u64 = source_check::foreign(&first.fabric.vpc.router)?
        .values()
        .sum();
    println!("\nPackets that left by an ENI that does not own their source: {foreign}.");
    println!("ENIs of the cluster that nothing holds: 0. Addresses with two owners: 0.");
    ensure!(foreign == 0, "{foreign} packets had a foreign source");
    Ok(())
}
