//! A foreign `ingress` qdisc instead of our clsact: both use the same slot of a device.

use serde_json::{Value, json};
use testkit::fabric::command::run_with_input;
use testkit::fabric::eventually::check;
use testkit::fabric::{Fabric, Pod, Spec};

use crate::support::{
    CHANGE, End, PEER, carry_all, count, get, nothing_differs, wait_for_eni, within,
};

/// Text of the status on such a qdisc.
const NAMED: &str = "a foreign ingress qdisc";

fn ready() -> Fabric {
    let spec = Spec {
        settings: json!({"datapath": {"attach": "clsact"}}),
        ..Spec::default()
    };
    Fabric::ready(&spec).unwrap()
}

/// Replaces our qdisc by an `ingress` qdisc, before the agent can restore ours.
pub(crate) fn displace(fabric: &Fabric, device: &str) {
    let batch = format!("qdisc del dev {device} clsact\nqdisc add dev {device} ingress\n");
    let mut tc = fabric.node.command("tc");
    run_with_input(tc.args(["-batch", "-"]), &batch).unwrap();
}

/// The note on a pod's endpoint.
fn note(fabric: &Fabric, pod: &Pod) -> Value {
    let status = get(fabric, "/v1/status");
    let device = pod.host_device();
    let notes = status["endpoint-notes"].as_object().cloned().unwrap();
    let mut notes = notes.into_values();
    notes
        .find(|note| note.as_str().is_some_and(|note| note.contains(&device)))
        .unwrap_or_default()
}

#[test]
fn on_a_pods_device_our_program_hangs_at_it_and_the_status_names_it() {
    let mut fabric = ready();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    let device = pod.host_device();
    assert_eq!(note(&fabric, &pod), Value::Null);
    displace(&fabric, &device);
    within(CHANGE, "our program hangs at the foreign qdisc", || {
        let filters = fabric
            .node
            .run(&format!("tc filter show dev {device} ingress"))?;
        check(filters.contains("from_endpoint"), || filters.clone())?;
        nothing_differs(&fabric)
    });
    let said = note(&fabric, &pod);
    assert!(
        said.as_str().is_some_and(|note| note.contains(NAMED)),
        "{said}"
    );
    assert_eq!(note(&fabric, &other), Value::Null);
    let text = fabric.agent.cli(&fabric.node, &["status"]).unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains(NAMED), "{text}");

    let forwarded = count(&fabric, "from_endpoint", "eni");
    for (pod, eni) in [(&pod, 1), (&other, 0)] {
        carry_all(&fabric, End::Pod(pod), PEER, &[eni]);
        carry_all(&fabric, PEER, End::Pod(pod), &[eni]);
    }
    carry_all(&fabric, End::Pod(&pod), End::Pod(&other), &[]);
    assert!(count(&fabric, "from_endpoint", "eni") > forwarded);

    // Like the bandwidth plugin: every packet goes by another device, which shapes them.
    for command in [
        "ip link add shaper type ifb".to_owned(),
        "ip link set shaper up".to_owned(),
        format!(
            "tc filter add dev {device} parent ffff: protocol all prio 1 u32 match u32 0 0 \
             action mirred egress redirect dev shaper"
        ),
    ] {
        fabric.node.run(&command).unwrap();
    }
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    carry_all(&fabric, PEER, End::Pod(&pod), &[1]);

    let qdiscs = || fabric.node.run(&format!("tc qdisc show dev {device}"));
    assert!(qdiscs().unwrap().contains("qdisc ingress"));
    fabric
        .node
        .run(&format!("tc qdisc del dev {device} ingress"))
        .unwrap();
    within(CHANGE, "our own qdisc is back", || {
        let qdiscs = qdiscs()?;
        check(qdiscs.contains("qdisc clsact"), || qdiscs.clone())?;
        nothing_differs(&fabric)
    });
    assert_eq!(note(&fabric, &pod), Value::Null);
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    fabric.finish().unwrap();
}

#[test]
fn on_an_eni_there_is_no_egress_and_all_else_goes_on() {
    let mut fabric = ready();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    displace(&fabric, "eth1");
    let eni = wait_for_eni(&fabric, 1, "not-ready");
    let reason = eni["readiness"]["reason"].as_str().unwrap();
    assert!(reason.contains(NAMED), "{reason}");
    assert!(reason.contains("use TCX"), "{reason}");
    for (pod, eni) in [(&pod, 1), (&other, 0)] {
        carry_all(&fabric, End::Pod(pod), PEER, &[eni]);
        carry_all(&fabric, PEER, End::Pod(pod), &[eni]);
    }
    // A pod that needs only the other ENI is still added.
    let third = fabric.add_pod(0, 1).unwrap();
    carry_all(&fabric, End::Pod(&third), PEER, &[0]);
    let filters = fabric.node.run("tc filter show dev eth1 ingress").unwrap();
    assert!(filters.contains("from_network"), "{filters}");
    assert!(!filters.contains("to_network"), "{filters}");
    fabric.node.run("tc qdisc del dev eth1 ingress").unwrap();
    wait_for_eni(&fabric, 1, "ready");
    fabric.finish().unwrap();
}
