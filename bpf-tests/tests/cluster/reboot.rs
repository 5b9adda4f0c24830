//! A node's parts end and come back: kubelet and runtime alone, then the whole machine.

use testkit::cluster::{Cluster, ClusterSpec, PodAt, SOON, deployment};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::ProxyMode;

use crate::across;

const PODS: u32 = 8;
const LABEL: &str = "app=web";

fn pods(cluster: &Cluster) -> Vec<PodAt> {
    cluster.pods("default", LABEL, PODS as usize).unwrap()
}

fn traffic(cluster: &Cluster, pods: &[PodAt]) {
    across::everywhere(cluster, &across::one_of_each_eni(cluster, pods));
}

#[test]
fn pods_outlive_kubelet_and_runtime_and_come_back_after_a_reboot() {
    let mode = ProxyMode::Iptables;
    let mut cluster = Cluster::ready(&ClusterSpec::new(mode)).unwrap();
    let web = deployment("default", "web", PODS);
    cluster.apply(&[web]).unwrap();
    cluster.rolled_out("default", "deployment/web").unwrap();
    let before = pods(&cluster);
    traffic(&cluster, &before);

    // Kubelet and runtime are away, and come back with what they knew.
    cluster.workers[1].kubelet = None;
    cluster.workers[1].bed.stop();
    traffic(&cluster, &before);
    cluster.workers[1].bed.resume().unwrap();
    restart_kubelet(&mut cluster, 1);
    cluster.node_is_ready("fabric-node-2", true, "").unwrap();
    let names = |pods: &[PodAt]| {
        let mut names: Vec<_> = pods
            .iter()
            .map(|pod| (pod.name.clone(), pod.addresses.clone()))
            .collect();
        names.sort();
        names
    };
    let after = pods(&cluster);
    assert_eq!(names(&after), names(&before), "no pod was made again");
    traffic(&cluster, &after);
    drop((before, after));

    // The machine starts again: its pods are made again, on what its disk has.
    let worker = &mut cluster.workers[1];
    worker.kubelet = None;
    worker.proxy = None;
    worker.bed.stop();
    worker.fabric.reboot().unwrap();
    worker.bed.reboot().unwrap();
    worker.bed.resume().unwrap();
    restart_kubelet(&mut cluster, 1);
    let Cluster {
        workers, server, ..
    } = &mut cluster;
    workers[1].start_proxy(server, mode).unwrap();
    cluster.node_is_ready("fabric-node-2", true, "").unwrap();
    let restarted = || {
        let list = "/api/v1/namespaces/default/pods?labelSelector=app=web";
        let list = cluster.admin().get(list)?.expect(200)?;
        let pods = list["items"].as_array().into_iter().flatten();
        let rebooted = pods.filter(|pod| pod["spec"]["nodeName"] == "fabric-node-2");
        let waiting: Vec<_> = rebooted
            .filter(|pod| pod["status"]["containerStatuses"][0]["restartCount"] == 0)
            .map(|pod| pod["metadata"]["name"].to_string())
            .collect();
        check(waiting.is_empty(), || format!("{waiting:?}"))
    };
    eventually(SOON, "the node's pods are made again", restarted).unwrap();
    traffic(&cluster, &pods(&cluster));
    cluster.finish().unwrap();
}

fn restart_kubelet(cluster: &mut Cluster, worker: usize) {
    let Cluster {
        workers, server, ..
    } = cluster;
    workers[worker].start_kubelet(server).unwrap();
}
