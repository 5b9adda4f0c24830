//! Forwarding of each device: what service NAT has translated, and what takes the host's stack, needs
//! it on ENIs and pods' devices.

use serde_json::json;
use testkit::fabric::Fabric;
use testkit::fabric::eventually::check;

use crate::masq::scene;
use crate::support::{CHANGE, End, HEAL, PEER, carry_all, get, within};

fn of(device: &str) -> String {
    format!("ipv4/conf/{device}/forwarding")
}

/// The host's ends of pods' devices.
fn pods(fabric: &Fabric) -> Vec<String> {
    let endpoints = get(fabric, "/v1/endpoints");
    let endpoints = endpoints.as_array().unwrap().iter();
    let device =
        |endpoint: &serde_json::Value| endpoint["host-device"].as_str().unwrap().to_owned();
    endpoints.map(device).collect()
}

fn repairs(fabric: &Fabric) -> u64 {
    let repairs = &get(fabric, "/v1/status")["repairs"]["by-kind"]["sysctl"];
    repairs.as_u64().unwrap_or_default()
}

#[test]
fn forwarding_of_each_device_is_put_back_and_counted() {
    let (mut fabric, [_, pod]) = scene(json!({"datapath": {"path": "stack"}}));
    let mut devices = pods(&fabric);
    assert_eq!(devices.len(), 2);
    devices.extend(["eth0", "eth1"].map(str::to_owned));
    let before = repairs(&fabric);
    for device in &devices {
        // IPv6's changes what the host makes of router advertisements: it is only looked at.
        let v6 = format!("ipv6/conf/{device}/forwarding");
        let both = [(v6.as_str(), "0"), (&of(device), "0")];
        fabric.node.sysctls(&both).unwrap();
        within(HEAL, device, || {
            let value = fabric.node.sysctl(&of(device))?;
            check(value.trim() == "1", || value)
        });
        assert_eq!(fabric.node.sysctl(&v6).unwrap().trim(), "0", "{device}");
    }
    within(CHANGE, "repairs", || {
        let counted = repairs(&fabric) - before;
        check(counted == 4, || counted.to_string())
    });
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    // New devices begin with the host's default, and forward before their pod is reported as added.
    fabric
        .node
        .sysctls(&[(of("default").as_str(), "0")])
        .unwrap();
    fabric.add_pod(1, 1).unwrap();
    for device in pods(&fabric) {
        assert_eq!(
            fabric.node.sysctl(&of(&device)).unwrap().trim(),
            "1",
            "{device}"
        );
    }
    assert_eq!(fabric.node.sysctl(&of("default")).unwrap().trim(), "0");
    let sysctls = get(&fabric, "/v1/status")["sysctls"].to_string();
    assert!(
        sysctls.contains("net.ipv6.conf.eth1.forwarding"),
        "{sysctls}"
    );
    fabric.finish().unwrap();
}

#[test]
fn a_host_that_does_not_forward_is_turned_on_whole() {
    let (fabric, _) = scene(json!({}));
    let before = repairs(&fabric);
    fabric.node.sysctls(&[("ipv4/ip_forward", "0")]).unwrap();
    within(HEAL, "forwarding", || {
        for device in ["eth0", "eth1", "all"] {
            let value = fabric.node.sysctl(&of(device))?;
            check(value.trim() == "1", || format!("{device}: {value}"))?;
        }
        Ok(())
    });
    within(CHANGE, "one repair", || {
        let counted = repairs(&fabric) - before;
        check(counted == 1, || counted.to_string())
    });
    fabric.finish().unwrap();
}
