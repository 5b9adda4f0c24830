//! NetworkManager, the real one, on a node with a secondary ENI.

use bpf_tests::fabric::Spec;
use bpf_tests::fabric::eventually::check;
use bpf_tests::fabric::manager::{DhcpServer, Manager, shipped};
use serde_json::json;
use towpath::intent::Family;

use crate::managers::{named, renamed, takes};
use crate::support::{CHANGE, get, nothing_differs, within};

/// A profile of an Ethernet device, as a desktop or an installer makes one for every device.
fn profile(device: &str, ipv4: &str) -> String {
    format!(
        "[connection]\nid={device}\ntype=ethernet\ninterface-name={device}\n\
         [ipv4]\n{ipv4}\n[ipv6]\nmethod=link-local\n"
    )
}

#[test]
fn network_manager_on_an_eni_is_outlived_and_named_and_the_drop_ins_keep_it_off() {
    let mut fabric = renamed(&Spec::default());
    let _server = DhcpServer::start(&fabric, 1).unwrap();
    fabric.start_agent().unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    let own = fabric.eni(0).unwrap().own_address(Family::V4).unwrap();
    let v6 = fabric.eni(0).unwrap().own_address(Family::V6).unwrap();
    let primary = profile(
        "ens5",
        &format!("method=manual\naddress1={own}/24,10.0.0.1"),
    )
    .replace(
        "method=link-local",
        &format!("method=manual\naddress1={v6}/128,fe80:ec2::1"),
    );
    let files = [
        ("system-connections/ens5.nmconnection", primary),
        (
            "system-connections/ens6.nmconnection",
            profile("ens6", "method=auto"),
        ),
    ];
    let manager = Manager::network_manager(&fabric, &files).unwrap();
    within(CHANGE * 2, "what it did is named", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        named(&status, 1, "address", "10.0.1.10/24", None)?;
        named(&status, 1, "default-route", "via 10.0.1.1", Some("dhcp"))?;
        let state = &status["health"]["state"];
        check(state == "ready", || status["health"].to_string())
    });
    takes(&fabric, &pods);
    println!("{}", get(&fabric, "/v1/status")["repairs"]);
    drop(manager);

    let clean = "addr del 10.0.1.10/24 dev ens6\nlink set ens6 down\nlink set ens6 up";
    fabric.node.ip(clean).unwrap();
    within(CHANGE, "everything is there", || nothing_differs(&fabric));
    let file = "NetworkManager/conf.d/50-towpath.conf";
    let files = files
        .into_iter()
        .chain([("conf.d/50-towpath.conf", shipped(file).unwrap())]);
    let files: Vec<_> = files.collect();
    let manager = Manager::network_manager(&fabric, &files).unwrap();
    within(CHANGE * 2, "the primary is set up", || {
        let log = manager.log();
        let count = log.matches("device (ens5): Activation: successful").count();
        check(count == 2, || log.clone())
    });
    let log = manager.log();
    let second = log.rsplit("is starting...").next().unwrap_or_default();
    let others = [
        "ens6".to_owned(),
        pods[0].host_device(),
        pods[1].host_device(),
    ];
    for device in others {
        let taken = format!("device ({device}): Activation: starting");
        assert!(!second.contains(&taken), "{second}");
    }
    assert_eq!(get(&fabric, "/v1/status")["traces"], json!([]));
    takes(&fabric, &pods);
    fabric.finish().unwrap();
}
