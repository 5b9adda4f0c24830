//! The real NetworkManager on a node with a secondary ENI.

use std::sync::Arc;

use anyhow::Context as _;
use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::manager::{DhcpServer, Manager, shipped};
use testkit::fabric::{Fabric, Pod, Spec};

use crate::managers::{named, renamed, takes};
use crate::support::{CHANGE, get, nothing_differs, within, within_counted};

/// A profile of an Ethernet device, like those that a desktop or an installer makes for every
/// device.
fn profile(device: &str, ipv4: &str) -> String {
    format!(
        "[connection]\nid={device}\ntype=ethernet\ninterface-name={device}\n\
         [ipv4]\n{ipv4}\n[ipv6]\nmethod=link-local\n"
    )
}

/// A node on which NetworkManager runs before the agent, with profiles for both ENIs and more
/// files, as if an ENI were attached while it runs. Then each ENI gets a pod.
fn scene(more: &[(&'static str, String)]) -> (Fabric, Manager, DhcpServer, [Arc<Pod>; 2]) {
    let mut fabric = renamed(&Spec::default());
    let server = DhcpServer::start(&fabric, 1).unwrap();
    let own = |family| fabric.eni(0).unwrap().own_address(family).unwrap();
    let (v4, v6) = (own(Family::V4), own(Family::V6));
    let by_dhcp = profile("ens6", "method=auto");
    let primary = profile("ens5", &format!("method=manual\naddress1={v4}/24,10.0.0.1")).replace(
        "method=link-local",
        &format!("method=manual\naddress1={v6}/128,fe80:ec2::1"),
    );
    let mut files = vec![
        ("system-connections/ens5.nmconnection", primary),
        ("system-connections/ens6.nmconnection", by_dhcp),
    ];
    files.extend(more.iter().cloned());
    let manager = Manager::network_manager(&fabric, &files).unwrap();
    within(CHANGE, "the primary is set up", || {
        let log = manager.log();
        check(log.contains(&taken("ens5")), || log.clone())
    });
    fabric.start_agent().unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    (fabric, manager, server, pods)
}

/// Log line of NetworkManager for a device that it has configured.
fn taken(device: &str) -> String {
    format!("device ({device}): Activation: successful")
}

#[test]
fn network_manager_on_every_eni_takes_nothing_from_pods_and_is_named() {
    let (fabric, manager, _server, pods) = scene(&[]);
    within(CHANGE, "what it did is named", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        let log = || manager.log();
        named(&status, "address", "10.0.1.10/24", None).with_context(log)?;
        named(&status, "default-route", "via 10.0.1.1", Some("dhcp"))?;
        named(&status, "connected-route", "10.0.1.0/24", Some("kernel"))?;
        let state = &status["health"]["state"];
        check(state == "ready", || status["health"].to_string())
    });
    takes(&fabric, &pods);
    // It reconfigures the device after an event; a request of a client is not distinguishable from
    // others.
    let before = get(&fabric, "/v1/status")["repairs"]["total"].clone();
    fabric
        .node
        .ip("link set ens6 down\nlink set ens6 up")
        .unwrap();
    within(CHANGE, "all of ours is back", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        check(status["repairs"]["total"] != before, || before.to_string())?;
        nothing_differs(&fabric)
    });
    // It removes the address, and takes some time to give the device another one.
    let away = within_counted(CHANGE * 6, "its link-local address is back", || {
        let shown = fabric.node.run("ip -6 addr show dev ens6 scope link")?;
        // While it is tentative the kernel solicits no gateway from it (RFC 4862, 5.4).
        let is_usable = shown.contains("fe80") && !shown.contains("tentative");
        check(is_usable, || format!("{shown}{}", manager.log()))
    });
    println!("ens6 had no link-local address for {away:?}");
    takes(&fabric, &pods);
    fabric.finish().unwrap();
}

#[test]
fn the_drop_in_keeps_network_manager_off() {
    let name = "conf.d/50-towpath.conf";
    let text = shipped(&format!("NetworkManager/{name}")).unwrap();
    let (fabric, manager, _server, pods) = scene(&[(name, text)]);
    takes(&fabric, &pods);
    let log = manager.log();
    let others = [
        "ens6".to_owned(),
        pods[0].host_device(),
        pods[1].host_device(),
    ];
    for device in others {
        assert!(
            log.contains(&format!("({device}): new Veth device")),
            "{log}"
        );
        assert!(
            !log.contains(&format!("device ({device}): state change")),
            "{log}"
        );
    }
    assert_eq!(get(&fabric, "/v1/status")["foreign-config"], json!([]));
    fabric.finish().unwrap();
}
