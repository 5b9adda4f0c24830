//! Mishaps of a cloud, and of what is beside it, while pods run: pods go on, and each heals within a
//! minute.

use std::time::{Duration, Instant};

use ec2_fake::{Answer, Ask, Call, Create, Describe, Item, What};
use ipam::Family;
use jiff::Timestamp;
use testkit::cluster::{Cluster, PodAt, deployment};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::Protocol;

use crate::across;
use crate::operated::{is_in_order, packets_go, scale, site, spec};

/// A mishap heals within this time.
const HEALED: Duration = Duration::from_mins(1);
/// The pods that run while it happens: more than a primary ENI has addresses for.
const FEW: u32 = 34;
/// More of them than the nodes have addresses for.
const MANY: u32 = 60;
/// The operator's Lease.
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/towpath-operator";
/// The subnet of the nodes.
const SUBNET: &str = "subnet-0fab0000000000000";

/// A mishap's name, and the function that has it happen and sees it heal.
type Mishap = (&'static str, fn(&mut Cluster));

/// Each mishap; an ordinary run has the first two.
const MISHAPS: [Mishap; 5] = [
    ("an ENI is detached by somebody else", an_eni_is_detached),
    ("EC2 is away", ec2_is_away),
    ("the API server is away", the_api_server_is_away),
    ("the subnet is full", the_subnet_is_full),
    ("the node is another instance", the_node_is_replaced),
];

/// The time for which a part is away.
fn absence() -> Duration {
    let full = std::env::var_os("TOWPATH_FULL").is_some();
    Duration::from_secs(if full { 600 } else { 10 })
}

/// A pod exchanges packets of every kind with a host of the VPC.
fn packets_of(cluster: &Cluster, pod: &PodAt) -> anyhow::Result<()> {
    for family in Family::ALL {
        let peer = cluster.workers[0].fabric.host(Host::Peer, family);
        for protocol in Protocol::ALL {
            protocol.exchange(pod.at(family)?, peer)?;
        }
    }
    Ok(())
}

/// Scales the Deployment, and waits until all of its pods are ready: within a minute, counted from
/// the moment that the controllers have made them.
fn scales(cluster: &Cluster, replicas: u32) {
    let (started, since) = (Instant::now(), Timestamp::now());
    scale(cluster, replicas);
    let took = started.elapsed();
    let start = cluster.parts_of_start("default", "app=web", since).unwrap();
    println!("{replicas} pods were ready after {took:?}: {start:?}");
    let ours = took.saturating_sub(start.made);
    assert!(ours < HEALED, "{replicas} pods: {took:?}, {start:?}");
}

/// A pod of each ENI that has any. Those of many pods that stay need not be spread over all ENIs.
fn chosen(cluster: &Cluster) -> Vec<PodAt> {
    let pods = cluster.pods("default", "app=web", FEW as usize).unwrap();
    let chosen = across::one_of_each_eni(cluster, &pods).into_iter();
    let names: Vec<String> = chosen.map(|pod| pod.name.clone()).collect();
    let chosen = pods.into_iter().filter(|pod| names.contains(&pod.name));
    let chosen: Vec<PodAt> = chosen.collect();
    for worker in &cluster.workers {
        let name = worker.name();
        assert!(chosen.iter().any(|pod| pod.node == name), "{name}: no pods");
    }
    chosen
}

/// Packets of pods go all the time for which a part is away.
fn go_on(cluster: &Cluster, pods: &[PodAt]) {
    let began = Instant::now();
    let away = || {
        for pod in pods {
            packets_of(cluster, pod).unwrap();
        }
        check(began.elapsed() > absence(), || "too soon".to_owned())
    };
    eventually(absence() + HEALED, "a part is away", away).unwrap();
}

fn an_eni_is_detached(cluster: &mut Cluster) {
    let pods = cluster.pods("default", "app=web", FEW as usize).unwrap();
    let is_on_it = |pod: &&PodAt| !across::owner(cluster, pod, Family::V4).is_multiple_of(100);
    let pod = pods.iter().find(is_on_it).unwrap();
    let key = across::owner(cluster, pod, Family::V4);
    let enis = cluster.enis(cluster.worker(&pod.node).unwrap());
    let id = enis.iter().find(|eni| eni.key == key).unwrap().id();
    let attachment = site(cluster)
        .cloud
        .peek(|cloud| Some(cloud.interface(&id)?.attachment.as_ref()?.id.clone()));
    site(cluster)
        .call(Call::Detach(attachment.unwrap()))
        .unwrap();
    packets_of(cluster, pod).unwrap_err();
    let ((), took) = eventually(HEALED, "its pods have packets again", || {
        packets_of(cluster, pod)
    })
    .unwrap();
    println!("an ENI that was detached was there again after {took:?}");
}

/// More pods are requested than there are addresses for.
fn ec2_is_away(cluster: &mut Cluster) {
    let pods = chosen(cluster);
    cluster.site.as_mut().unwrap().hide();
    let many = format!("--replicas={MANY}");
    let kubectl = cluster.kubectl().unwrap();
    kubectl
        .succeed(&["scale", "deployment/web", &many])
        .unwrap();
    go_on(cluster, &pods);
    let Cluster { site, server, .. } = &mut *cluster;
    site.as_mut().unwrap().serve(server.netns()).unwrap();
    scales(cluster, MANY);
    scale(cluster, FEW);
}

/// An operator has renewed its Lease since a time.
fn leads(cluster: &Cluster, since: Timestamp) -> anyhow::Result<()> {
    let lease = cluster.admin().get(LEASE)?.expect(200)?;
    let renewed = lease["spec"]["renewTime"].as_str().unwrap_or_default();
    check(renewed.parse::<Timestamp>()? > since, || {
        format!("renewed at {renewed}")
    })
}

fn the_api_server_is_away(cluster: &mut Cluster) {
    let pods = chosen(cluster);
    cluster.server.kill();
    go_on(cluster, &pods);
    cluster.server.resume().unwrap();
    // The controllers wait up to a minute before they look again. The operator is not to.
    let since = Timestamp::now();
    let leads = || leads(cluster, since);
    let ((), took) = eventually(HEALED, "the operator leads again", leads).unwrap();
    println!("the operator leads again after {took:?}");
    scales(cluster, MANY);
    scale(cluster, FEW);
}

/// Another client takes all free addresses of the nodes' subnet.
fn the_subnet_is_full(cluster: &mut Cluster) {
    let subnet = Describe {
        what: What::Subnets,
        ids: vec![SUBNET.to_owned()],
        filters: Vec::new(),
        max: None,
        next: None,
    };
    let Answer::Page(page) = site(cluster).call(Call::Describe(subnet)).unwrap() else {
        panic!("a listing is a page");
    };
    let Some(Item::Subnet(_, free)) = page.items.first() else {
        panic!("{page:?}");
    };
    let create = Create {
        subnet: SUBNET.to_owned(),
        ipv4: Ask {
            // One is its own.
            count: usize::try_from(*free - 1).unwrap(),
            ..Ask::default()
        },
        ..Create::default()
    };
    let Answer::Created { eni, .. } = site(cluster).call(Call::Create(create.into())).unwrap()
    else {
        panic!("a creation has an interface");
    };
    scales(cluster, 2 * MANY - FEW);
    let others = site(cluster).cloud.peek(|cloud| {
        let others = cloud
            .interfaces()
            .filter(|eni| eni.placement.subnet != SUBNET);
        others.count()
    });
    assert!(others > 0, "no ENI is in another subnet");
    site(cluster).call(Call::Delete(eni.id.clone())).unwrap();
    scale(cluster, FEW);
}

/// The instance of a node ends with all of its ENIs, and another one joins under its name.
fn the_node_is_replaced(cluster: &mut Cluster) {
    let name = cluster.workers[1].name();
    cluster.replace(&name, &spec()).unwrap();
    cluster.node_is_ready(&name, true, "").unwrap();
    for (namespace, workload) in [
        ("kube-system", "daemonset/towpath"),
        ("default", "deployment/web"),
    ] {
        cluster.rolled_out(namespace, workload).unwrap();
    }
    scales(cluster, MANY);
    scale(cluster, FEW);
}

#[test]
fn what_befalls_the_cloud_heals_within_a_minute() {
    let mut cluster = Cluster::create(&spec()).unwrap();
    cluster.make_ready(&spec()).unwrap();
    cluster.apply(&[deployment("default", "web", 0)]).unwrap();
    scale(&cluster, FEW);
    let full = std::env::var_os("TOWPATH_FULL").is_some();
    let number = if full { MISHAPS.len() } else { 2 };
    for (name, happens) in MISHAPS.into_iter().take(number) {
        println!("{name}");
        happens(&mut cluster);
        packets_go(&cluster, &chosen(&cluster));
        is_in_order(&cluster);
    }
    cluster.finish().unwrap();
}
