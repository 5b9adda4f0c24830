//! ENIs with TCX and pods with clsact (`attach: mixed`).

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::state::{program_ids, tcx_ids};
use testkit::fabric::traffic::Stream;
use testkit::fabric::{Fabric, Pod, Spec};

use crate::ingress_qdisc::displace;
use crate::support::{CHANGE, End, PEER, carry_all, nothing_differs, within};

/// Packets a second of a stream that loses none.
const RATE: u64 = 1000;

fn mixed() -> Spec {
    Spec {
        settings: json!({"datapath": {"attach": "mixed"}}),
        ..Spec::default()
    }
}

/// The number of programs that a device has at its ingress, and how many of them TCX runs.
#[track_caller]
fn programs(fabric: &Fabric, device: &str) -> (usize, usize) {
    let all = program_ids(&fabric.node, device).unwrap();
    (all.len(), tcx_ids(&fabric.node, device).unwrap().len())
}

#[track_caller]
fn works(fabric: &Fabric, pod: &Pod) {
    carry_all(fabric, End::Pod(pod), PEER, &[1]);
}

#[test]
fn enis_get_links_and_pods_filters() {
    let mut fabric = Fabric::ready(&mixed()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    assert_eq!(programs(&fabric, "eth0"), (1, 1));
    assert_eq!(programs(&fabric, "eth1"), (1, 1));
    assert_eq!(programs(&fabric, &pod.host_device()), (1, 0));
    works(&fabric, &pod);
    fabric.finish().unwrap();
}

/// Existing links on pods' devices, for example an earlier agent's, stay: removing one makes the
/// node wait as long as attaching one.
#[test]
fn links_on_pods_devices_stay_and_lose_no_packet() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let device = pod.host_device();
    let old = program_ids(&fabric.node, &device).unwrap();
    assert_eq!(programs(&fabric, &device), (1, 1));
    let stream = Stream::start(
        pod.at(Family::V4),
        fabric.peer(Family::V4),
        RATE,
        "out of the pod",
    )
    .unwrap();
    fabric.agent.stop().unwrap();
    fabric
        .agent
        .configure(&json!({"datapath": {"attach": "mixed"}}))
        .unwrap();
    fabric.start_agent().unwrap();
    assert_eq!(programs(&fabric, &device), (1, 1));
    assert_ne!(program_ids(&fabric.node, &device).unwrap(), old);
    let other = fabric.add_pod(1, 1).unwrap();
    assert_eq!(programs(&fabric, &other.host_device()), (1, 0));
    let report = stream.finish().unwrap();
    assert!(report.lost.is_empty(), "{report}");
    works(&fabric, &pod);
    works(&fabric, &other);
    fabric.finish().unwrap();
}

/// A filter there would run after the qdisc's own ones, and there is no egress hook.
#[test]
fn a_pods_device_with_somebodys_ingress_qdisc_gets_a_link() {
    let mut fabric = Fabric::ready(&mixed()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let device = pod.host_device();
    displace(&fabric, &device);
    within(CHANGE, "our program runs by TCX", || {
        let links = tcx_ids(&fabric.node, &device)?;
        check(links.len() == 1, || format!("{links:?}"))?;
        nothing_differs(&fabric)
    });
    assert_eq!(programs(&fabric, &device), (1, 1));
    works(&fabric, &pod);
    fabric.finish().unwrap();
}
