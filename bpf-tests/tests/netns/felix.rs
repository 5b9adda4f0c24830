//! A policy engine's settings of pods' devices, next to ours: Calico's Felix repeatedly writes them
//! to each of its devices.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::fabric::Fabric;
use testkit::fabric::Spec;

use crate::support::{End, PEER, carry_all, get, nothing_differs};

/// Duration of the engine's writes.
const TIME: Duration = Duration::from_secs(10);

/// Settings that Felix writes, by file below `/proc/sys/net`.
const SETTINGS: [(&str, &str); 8] = [
    ("ipv4/conf/DEVICE/rp_filter", "1"),
    ("ipv4/conf/DEVICE/route_localnet", "1"),
    ("ipv4/conf/DEVICE/proxy_arp", "1"),
    ("ipv4/conf/DEVICE/forwarding", "1"),
    ("ipv4/neigh/DEVICE/proxy_delay", "0"),
    ("ipv6/conf/DEVICE/accept_ra", "0"),
    ("ipv6/conf/DEVICE/proxy_ndp", "1"),
    ("ipv6/conf/DEVICE/forwarding", "1"),
];

fn write(fabric: &Fabric, device: &str, settings: &[(&str, &str)]) {
    for (file, value) in settings {
        let path = format!("/proc/sys/net/{}", file.replace("DEVICE", device));
        let mut tee = fabric.node.command("tee");
        testkit::fabric::command::run_with_input(tee.arg(path), value).unwrap();
    }
}

fn repairs(fabric: &Fabric) -> u64 {
    get(fabric, "/v1/status")["repairs"]["total"]
        .as_u64()
        .unwrap()
}

#[test]
fn an_engines_settings_of_a_pods_device_stay_and_its_traffic_goes_on() {
    for path in ["direct", "stack"] {
        let settings = json!({"datapath": {"path": path}});
        let spec = Spec {
            settings,
            ..Spec::default()
        };
        let mut fabric = Fabric::ready(&spec).unwrap();
        let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
        let device = pod.host_device();
        let before = repairs(&fabric);
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            write(&fabric, &device, &SETTINGS);
            carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
            carry_all(&fabric, PEER, End::Pod(&pod), &[1]);
            carry_all(&fabric, End::Pod(&pod), End::Pod(&other), &[]);
        }
        assert_eq!(repairs(&fabric), before, "path {path}");
        for (file, value) in SETTINGS {
            let path = format!("/proc/sys/net/{}", file.replace("DEVICE", &device));
            let is = fabric.node.run(&format!("cat {path}")).unwrap();
            assert_eq!(is.trim(), value, "{path}");
        }
        nothing_differs(&fabric).unwrap();
        fabric.finish().unwrap();
    }
}

/// The one setting of a pod's device that is ours and that other software may change.
#[test]
fn a_setting_of_ours_that_others_overwrite_is_put_back_at_a_pace() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let device = pod.host_device();
    let before = repairs(&fabric);
    let end = Instant::now() + TIME;
    while Instant::now() < end {
        write(
            &fabric,
            &device,
            &[("ipv4/conf/DEVICE/send_redirects", "1")],
        );
    }
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    let made = repairs(&fabric) - before;
    assert!((1..=25).contains(&made), "{made} repairs");
    fabric.finish().unwrap();
}
