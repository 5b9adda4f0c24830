//! The agent and another active CNI on the node.

use std::os::unix::net::UnixListener;
use std::process::Output;

use serde_json::json;
use testkit::fabric::command::ends;
use testkit::fabric::program::{Action, ForeignProgram, Position};
use testkit::fabric::{Fabric, Spec};

/// Error of an agent that does not start.
fn refused(fabric: &Fabric) -> String {
    let mut command = fabric.agent.command(&fabric.node, &["run"]);
    let Output { status, stderr, .. } = ends(&mut command).unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(1), "{said}");
    said
}

#[test]
fn an_agent_does_not_start_into_another_cni_unless_told() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let node = |line: &str| fabric.node.ip(line).unwrap();
    // Remains of a CNI that is gone.
    node("rule add pref 512 to 10.0.1.77 lookup main");
    node("link add eni8478779f379 type veth peer name eth9");
    let said = refused(&fabric);
    for words in [
        "another CNI is at work on this node: Amazon VPC CNI (aws-node): pods have devices such as \
         eni8478779f379",
        "Remove its DaemonSet and drain the node first (docs/guide/kubernetes.md",
        "node.other-cni: ignore",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    node("link del eni8478779f379");

    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cilium/cilium.sock");
    std::fs::create_dir(socket.parent().unwrap()).unwrap();
    let listener = fabric.node.enter(|| Ok(UnixListener::bind(&socket)?));
    let said = refused(&fabric);
    assert!(said.contains("Cilium: cilium-agent listens at "), "{said}");
    drop(listener);

    // The other CNI's rule and file are no reason to stop.
    assert!(socket.exists());
    fabric.start_agent().unwrap();
    fabric.add_pod(1, 0).unwrap();
    fabric.agent.stop().unwrap();

    // The agent's own pods need it, whichever CNI runs as well.
    fabric
        .node
        .ip("link add eni8478779f379 type veth peer name eth9")
        .unwrap();
    fabric.start_agent().unwrap();
    let status = fabric.agent.ask("GET", "/v1/status", None).unwrap();
    let warning = status["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("another CNI is at work"), "{warning}");
    fabric.finish().unwrap();
}

/// Method of attaching a program of Cilium to a device.
type Attach = fn(&Fabric, &mut ForeignProgram, &str);

#[test]
fn programs_of_cilium_on_devices_of_the_node_keep_the_agent_off() {
    let tcx: Attach = |fabric, program, device| {
        program
            .attach_tcx(&fabric.node, device, Position::First)
            .unwrap();
    };
    let filter: Attach = |fabric, program, device| {
        let line = format!("tc qdisc add dev {device} clsact");
        fabric.node.run(&line).unwrap();
        program.attach_filter(&fabric.node, device, 1).unwrap();
    };
    let xdp: Attach = |fabric, program, device| program.attach_xdp(&fabric.node, device).unwrap();
    for (name, attach) in [
        ("cil_from_netdev", tcx),
        ("cil_to_netdev", filter),
        ("cil_xdp_entry", xdp),
    ] {
        let mut fabric = Fabric::create(&Spec::default()).unwrap();
        let bpffs = fabric.pin_root().with_file_name("");
        let load = |name: &str| {
            if name.contains("xdp") {
                ForeignProgram::load_xdp(name, &bpffs)
            } else {
                ForeignProgram::load(name, &bpffs, Action::Pass)
            }
        };
        let mut program = load(name).unwrap();
        attach(&fabric, &mut program, "eth1");
        let said = refused(&fabric);
        for words in [
            format!("Cilium: its program {name}"),
            "is on eth1".to_owned(),
            "node.other-cni: ignore".to_owned(),
        ] {
            assert!(said.contains(&words), "{words}: {said}");
        }
        fabric.node.ip("link set dev eth1 xdpgeneric off").unwrap();
        fabric.node.run("tc qdisc del dev eth1 clsact").ok();
        drop(program);

        // On Cilium's own devices it sees no packets once Cilium has gone. Programs with other
        // names are no sign of Cilium.
        fabric
            .node
            .ip("link add cilium_host type veth peer name cilium_net")
            .unwrap();
        let mut on_its_own = load(name).unwrap();
        attach(&fabric, &mut on_its_own, "cilium_host");
        let other = name.replace("cil_", "my_");
        let mut of_others = load(&other).unwrap();
        attach(&fabric, &mut of_others, "eth1");
        fabric.start_agent().unwrap();
        fabric.add_pod(1, 0).unwrap();
        drop((on_its_own, of_others));
        fabric.finish().unwrap();
    }
}

#[test]
fn a_configuration_that_runtimes_use_keeps_the_agent_off() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let folder = fabric.agent.conf_dir();
    std::fs::create_dir_all(&folder).unwrap();
    let put = |name: &str, types: &[&str]| {
        let plugins: Vec<_> = types.iter().map(|kind| json!({"type": kind})).collect();
        let list = json!({"cniVersion": "1.0.0", "name": "x", "plugins": plugins});
        std::fs::write(folder.join(name), list.to_string()).unwrap();
    };
    let remove = |name: &str| std::fs::remove_file(folder.join(name)).unwrap();
    put("10-towpath.conflist", &["towpath-cni", "portmap"]);
    for (name, types, who) in [
        ("10-aws.conflist", &["aws-cni", "portmap"][..], "aws-node"),
        ("05-cilium.conflist", &["cilium-cni"], "Cilium"),
        ("10-calico.conflist", &["calico", "bandwidth"], "Calico"),
        ("10-flannel.conflist", &["flannel", "portmap"], "Flannel"),
    ] {
        put(name, types);
        let said = refused(&fabric);
        let path = folder.join(name).display().to_string();
        for words in [who, &path, "remove files and programs that it left"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        remove(name);
    }
    // Neither a list after ours nor a plugin chained to ours is another active CNI.
    put("99-aws.conflist", &["aws-cni"]);
    put("05-chain.conflist", &["towpath-cni", "cilium-cni"]);
    fabric.start_agent().unwrap();
    fabric.add_pod(1, 0).unwrap();
    fabric.finish().unwrap();
}

#[test]
fn an_agent_that_is_told_starts_into_another_cni() {
    let settings = json!({"node": {"other-cni": "ignore"}});
    let spec = Spec {
        settings,
        ..Spec::default()
    };
    let mut fabric = Fabric::create(&spec).unwrap();
    fabric
        .node
        .ip("link add eni8478779f379 type veth peer name eth9")
        .unwrap();
    fabric.start_agent().unwrap();
    fabric.add_pod(1, 0).unwrap();
    fabric.finish().unwrap();
}
