//! Changes of devices by udev and similar software: another name, another MAC. udev itself changes
//! new devices; the tests change those in use.

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::manager::{shipped, udev};
use testkit::fabric::traffic::{Stream, ping};
use testkit::fabric::{Fabric, Spec, source_check};

use crate::managers::{healed, named, takes};
use crate::support::{CHANGE, End, PEER, carry_all, eni_status, get, wait_for_eni, within};

#[test]
fn an_enis_new_name_is_followed_silently_and_a_new_mac_is_named_and_led_astray_by_nothing() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    let (from, to) = (pods[1].at(Family::V4), fabric.peer(Family::V4));
    let stream = Stream::start(from, to, 500, "udp").unwrap();
    fabric.node.ip("link set eth1 name ens6").unwrap();
    within(CHANGE, "the new name is known", || {
        let eni = eni_status(&fabric, 1)?;
        check(eni["device"] == "ens6", || eni.to_string())
    });
    takes(&fabric, &pods);
    assert_eq!(get(&fabric, "/v1/status")["foreign-config"], json!([]));
    let report = stream.finish().unwrap();
    println!("a new name: {report}");
    assert!(report.lost.is_empty(), "{report}");

    let mac = fabric.eni(1).unwrap().mac;
    fabric
        .node
        .ip("link set ens6 address 02:00:00:00:00:99")
        .unwrap();
    wait_for_eni(&fabric, 1, "not-ready");
    let status = get(&fabric, "/v1/status");
    let object = format!("MAC 02:00:00:00:00:99, which was {mac}");
    named(&status, "mac", &object, None).unwrap();
    // Its pods reach nothing: they do not leave by the other ENI.
    source_check::forget_flows(&fabric.vpc.router).unwrap();
    for family in Family::ALL {
        let (pod, peer) = (pods[1].at(family), fabric.peer(family));
        assert!(ping(pod, peer.address, &["-W", "0.3"]).is_err());
        let taken = fabric.enis_between(pod.address, peer.address).unwrap();
        assert!(taken.is_empty(), "{taken:?}");
    }
    carry_all(&fabric, End::Pod(&pods[0]), PEER, &[0]);
    fabric
        .node
        .ip(&format!("link set ens6 address {mac}"))
        .unwrap();
    wait_for_eni(&fabric, 1, "ready");
    assert_eq!(get(&fabric, "/v1/status")["foreign-config"], json!([]));
    takes(&fabric, &pods);
    fabric.finish().unwrap();
}

/// udev's default is `MACAddressPolicy=persistent`: a device that was created without a MAC gets
/// one. Pods' devices are created with one, and the drop-in keeps udev from other devices of that
/// name.
#[test]
fn udev_leaves_pods_devices_alone() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    let link = |device: &str| {
        let shown = fabric
            .node
            .ip_json(&format!("link show dev {device}"))
            .unwrap();
        shown[0]["address"].to_string()
    };
    let device = pods[1].host_device();
    let before = link(&device);
    udev(&fabric, &device, &[]).unwrap();
    assert_eq!(link(&device), before);

    // A veth with a MAC chosen by the kernel.
    let strange = "tow-strange";
    let add = format!("link add {strange} type veth peer name strange");
    fabric.node.ip(&add).unwrap();
    let name = "05-towpath-pod.link";
    let text = shipped(&format!("systemd/network/{name}")).unwrap();
    let before = link(strange);
    udev(&fabric, strange, &[(name, text)]).unwrap();
    assert_eq!(link(strange), before, "with the drop-in");
    udev(&fabric, strange, &[]).unwrap();
    assert_ne!(link(strange), before, "without it");
    takes(&fabric, &pods);
    fabric.finish().unwrap();
}

/// A change that udev makes to a veth created without a MAC, made to a pod's device.
#[test]
fn a_pods_device_gets_its_mac_back() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    takes(&fabric, &pods);
    let device = pods[1].host_device();
    let mac = || {
        let shown = fabric.node.ip_json(&format!("link show dev {device}"))?;
        anyhow::Ok(shown[0]["address"].to_string())
    };
    let before = mac().unwrap();
    let total = get(&fabric, "/v1/status")["repairs"]["total"].clone();
    let (from, to) = (pods[1].at(Family::V6), fabric.peer(Family::V6));
    let stream = Stream::start(from, to, 500, "udp").unwrap();
    let change = format!("link set {device} address 02:00:00:00:00:99");
    fabric.node.ip(&change).unwrap();
    within(CHANGE, "it was repaired", || {
        let repairs = fabric.agent.ask("GET", "/v1/status", None)?["repairs"].clone();
        check(repairs["total"] != total, || repairs.to_string())
    });
    healed(&fabric, "the MAC", 0);
    assert_eq!(mac().unwrap(), before);
    let report = stream.finish().unwrap();
    println!("another MAC at the pod's device: {report}");
    takes(&fabric, &pods);
    fabric.finish().unwrap();
}
