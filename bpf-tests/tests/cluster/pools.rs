//! Pools on ENIs of their own, which namespaces choose: each with its subnet and security group, on
//! the same two nodes. The VPC's router enforces the groups.

use std::sync::Arc;

use anyhow::Context as _;
use ipam::Family;
use serde_json::{Value, json};
use testkit::cloud::{SiteSpec, subnet};
use testkit::cluster::{Cluster, ClusterSpec, PodAt, deployment};
use testkit::fabric::groups::{self, Admits, Group};
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Netns, Place};
use testkit::kubernetes::ProxyMode;

use crate::across::{exchange_all, owner};
use crate::operated::{is_in_order, site};

/// A pool with its subnet's number and its security group, both of which its ENIs have.
struct Pool {
    name: &'static str,
    subnet: u8,
    group: &'static str,
}

const BLUE: Pool = Pool {
    name: "blue",
    subnet: 1,
    group: "sg-blue",
};
const RED: Pool = Pool {
    name: "red",
    subnet: 2,
    group: "sg-red",
};
/// The group of a database in the VPC, which admits one of the pools.
const DATABASE: &str = "sg-database";

fn spec() -> ClusterSpec {
    let group = |id, admits| Group { id, admits };
    let site = SiteSpec {
        groups: vec![
            group(BLUE.group, Admits::Groups(&[BLUE.group, "sg-0fab"])),
            group(RED.group, Admits::All),
            group(DATABASE, Admits::Groups(&[RED.group])),
        ],
        hosts: vec![(Host::Peer, DATABASE)],
        ..SiteSpec::default()
    };
    ClusterSpec::in_cloud(ProxyMode::Nftables, site)
}

impl Pool {
    /// Its resource, and a namespace of its name whose pods have its addresses.
    fn objects(&self) -> [Value; 2] {
        let pool = json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
            "metadata": {"name": self.name, "annotations": {
                "ipam.towpath.dev/subnet-ids": subnet(self.subnet),
                "ipam.towpath.dev/security-groups": self.group
            }},
            "spec": {
                "ipv4": {"cidrs": [format!("10.0.{}.0/24", self.subnet)], "maskSize": 32},
                "ipv6": {"cidrs": ["2600:1f18:10:5600::/56"], "maskSize": 80}
            }
        });
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": self.name, "annotations": {"ipam.cilium.io/ip-pool": self.name}
            }
        });
        [pool, namespace]
    }

    /// Pods of the namespace, once all are ready.
    fn pods(&self, cluster: &Cluster, count: usize) -> Vec<PodAt> {
        cluster.rolled_out(self.name, "deployment/web").unwrap();
        let pods = cluster.pods(self.name, "app=web", count);
        pods.with_context(|| cluster.logs()).unwrap()
    }

    /// True if both addresses of a pod are the pool's, by the tag of their ENI. Then the ENI has the
    /// pool's subnet and group as well.
    fn has(&self, cluster: &Cluster, pod: &PodAt) -> bool {
        let of_pool = Family::ALL.map(|family| {
            let eni = eni_of(cluster, pod, family);
            let is_of_pool = eni.tags.get("ipam.towpath.dev/pool").map(String::as_str);
            if is_of_pool != Some(self.name) {
                return false;
            }
            assert_eq!(eni.groups, [self.group], "{pod:?}");
            assert_eq!(eni.placement.subnet, subnet(self.subnet), "{pod:?}");
            true
        });
        assert_eq!(of_pool[0], of_pool[1], "{pod:?}");
        of_pool[0]
    }
}

/// The ENI that has a pod's address, as the cloud knows it.
fn eni_of(cluster: &Cluster, pod: &PodAt, family: Family) -> Arc<ec2_fake::Eni> {
    let address = pod.at(family).unwrap().address;
    site(cluster).cloud.peek(|cloud| {
        let mut enis = cloud.interfaces();
        let eni = enis.find(|eni| eni.addresses.nets().any(|net| net.contains(&address)));
        Arc::clone(eni.unwrap())
    })
}

fn router(cluster: &Cluster) -> &Netns {
    &cluster.workers[0].fabric.vpc.router
}

/// Packets between two places of the VPC, which are refused at a device of its router.
fn is_refused(cluster: &Cluster, from: Place<'_>, to: Place<'_>, device: &str) {
    for protocol in Protocol::ALL {
        let before = groups::refused(router(cluster), device).unwrap();
        let sent = protocol.exchange(from, to);
        assert!(sent.is_err(), "{protocol} to {} arrived", to.address);
        let after = groups::refused(router(cluster), device).unwrap();
        assert!(after > before, "{protocol} to {}: {after}", to.address);
    }
}

fn database(cluster: &Cluster, family: Family) -> Place<'_> {
    cluster.workers[0].fabric.host(Host::Peer, family)
}

/// The database admits the pods of one pool. Pods of the other one are admitted by their own group
/// to each other and to nodes alone.
fn groups_hold(cluster: &Cluster, blue: &[PodAt], red: &[PodAt]) {
    for family in Family::ALL {
        let database = database(cluster, family);
        let at = |pods: &'_ [PodAt], node: usize| -> usize {
            let name = cluster.workers[node].name();
            pods.iter().position(|pod| pod.node == name).unwrap()
        };
        let (here, there) = (&blue[at(blue, 0)], &blue[at(blue, 1)]);
        let (one, other) = (&red[at(red, 0)], &red[at(red, 1)]);
        for pod in red {
            exchange_all(pod.at(family).unwrap(), database);
        }
        is_refused(cluster, here.at(family).unwrap(), database, "peer");
        for pods in [[here, there], [one, other], [here, other]] {
            let [from, to] = pods.map(|pod| pod.at(family).unwrap());
            exchange_all(from, to);
        }
        let node = cluster.workers[1].fabric.node_at(family).unwrap();
        exchange_all(node, here.at(family).unwrap());
        let device = format!("eni{}", owner(cluster, here, family));
        let (other, here) = (other.at(family).unwrap(), here.at(family).unwrap());
        is_refused(cluster, other, here, &device);
    }
}

/// It takes two minutes, so only the long form of the suite has it.
#[test]
fn namespaces_have_pools_with_subnets_and_security_groups_of_their_own() {
    if std::env::var_os("TOWPATH_FULL").is_none() {
        return;
    }
    let spec = spec();
    let cluster = Cluster::ready(&spec).unwrap();
    for pool in [BLUE, RED] {
        cluster.apply(&pool.objects()).unwrap();
        let pods = deployment(pool.name, "web", 2);
        cluster.apply(&[pods]).unwrap();
    }
    let (blue, red) = (BLUE.pods(&cluster, 2), RED.pods(&cluster, 2));
    assert!(blue.iter().all(|pod| BLUE.has(&cluster, pod)));
    assert!(red.iter().all(|pod| RED.has(&cluster, pod)));
    let tagged = site(&cluster).cloud.peek(|cloud| {
        let calls = cloud.log().filter(|it| it.action == "CreateTags");
        calls.count()
    });
    assert_eq!(tagged, 0, "ENIs have their pool from their creation on");
    groups_hold(&cluster, &blue, &red);

    // The namespace moves to the other pool. New pods follow, and the others keep their addresses.
    let kubectl = cluster.kubectl().unwrap();
    let moved = format!("ipam.cilium.io/ip-pool={}", RED.name);
    let words = ["annotate", "namespace", BLUE.name, "--overwrite", &moved];
    kubectl.succeed(&words).unwrap();
    let words = ["-n", BLUE.name, "scale", "deployment/web", "--replicas=4"];
    kubectl.succeed(&words).unwrap();
    let pods = BLUE.pods(&cluster, 4);
    for pod in &pods {
        let stayed = blue.iter().any(|it| it.name == pod.name);
        assert_eq!(BLUE.has(&cluster, pod), stayed, "{pod:?}");
        assert_eq!(RED.has(&cluster, pod), !stayed, "{pod:?}");
        let at = pod.at(Family::V4).unwrap();
        if stayed {
            let refused = Protocol::Tcp.exchange(at, database(&cluster, Family::V4));
            assert!(refused.is_err(), "{pod:?}");
        } else {
            exchange_all(at, database(&cluster, Family::V4));
        }
    }
    is_in_order(&cluster);
    drop((blue, red, pods));
    cluster.finish().unwrap();
}
