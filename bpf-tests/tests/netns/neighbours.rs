//! Foreign programs on our hooks.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::program::{Action, ForeignProgram, Position};
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Place, Pod, Spec};

use crate::support::{End, PEER, carry, carry_all, get};

/// The pod's ENI: its packets must not depend on whether the device is the primary.
const ENI: &str = "eth1";

struct Foreign {
    before: ForeignProgram,
    after: ForeignProgram,
}

/// More packets than there are ARP frames, which are passed on too.
const PASSED_ON: u64 = 8;

/// At least [`PASSED_ON`] packets that our programs hand to the stack, at the pod and at its ENI.
fn passed_on(fabric: &Fabric, pod: &Pod) {
    carry_all(fabric, End::Pod(pod), End::Node, &[]);
    let eni_address = Place {
        netns: &fabric.node,
        address: [10, 0, 1, 10].into(),
    };
    for _ in 0..PASSED_ON {
        let peer = fabric.peer(Family::V4);
        carry([peer, eni_address], Protocol::Udp, fabric, &[1]);
    }
}

/// Expects that programs before ours see every packet, that those after ours see the packets that
/// we pass on, and that ours still work.
fn all_see_packets(fabric: &mut Fabric, on_pod: &Foreign, on_eni: &Foreign) {
    let pod = fabric.pods()[0].clone();
    let runs = |program: &ForeignProgram| program.runs().unwrap();
    for restarted in [false, true] {
        if restarted {
            fabric.agent.stop().unwrap();
            fabric.start_agent().unwrap();
        }
        let before = [&on_pod.before, &on_eni.before].map(runs);
        carry_all(fabric, End::Pod(&pod), PEER, &[1]);
        carry_all(fabric, PEER, End::Pod(&pod), &[1]);
        assert!(runs(&on_pod.before) > before[0], "before ours, at the pod");
        assert!(runs(&on_eni.before) > before[1], "before ours, at the ENI");

        let after = [&on_pod.after, &on_eni.after].map(runs);
        passed_on(fabric, &pod);
        assert!(
            runs(&on_pod.after) >= after[0] + PASSED_ON,
            "after ours, at the pod"
        );
        assert!(
            runs(&on_eni.after) >= after[1] + PASSED_ON,
            "after ours, at the ENI"
        );
    }
}

fn shown(fabric: &Fabric, device: &str, name: &str) -> Option<Value> {
    let status = get(fabric, "/v1/status");
    let programs = status["datapath"]["foreign-programs"].as_array().cloned();
    let mut programs = programs.unwrap_or_default().into_iter();
    // tc extends the name of a program from a pin.
    let named = |program: &Value| {
        program["name"]
            .as_str()
            .is_some_and(|n| n.starts_with(name))
    };
    programs.find(|program| program["device"] == device && named(program))
}

#[test]
fn tcx_programs_before_and_after_ours() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let folder = fabric.pin_root().with_file_name("");
    let place = |device: &str, name: &str| {
        let mut foreign = Foreign {
            before: ForeignProgram::load(&format!("{name}_before"), &folder, Action::Pass).unwrap(),
            after: ForeignProgram::load(&format!("{name}_after"), &folder, Action::Pass).unwrap(),
        };
        foreign
            .before
            .attach_tcx(&fabric.node, device, Position::First)
            .unwrap();
        foreign
            .after
            .attach_tcx(&fabric.node, device, Position::Last)
            .unwrap();
        foreign
    };
    let veth = pod.host_device();
    let (on_pod, on_eni) = (place(&veth, "pod"), place(ENI, "eni"));
    for (device, name, position) in [
        (veth.as_str(), "pod_before", "before"),
        (veth.as_str(), "pod_after", "after"),
        (ENI, "eni_before", "before"),
        (ENI, "eni_after", "after"),
    ] {
        let program = shown(&fabric, device, name);
        let program = program.unwrap_or_else(|| panic!("{name} is not shown"));
        assert_eq!(program["position"], position, "{program}");
    }
    all_see_packets(&mut fabric, &on_pod, &on_eni);
    fabric.finish().unwrap();
}

/// Filters of tc see packets after TCX; with clsact, before and after ours by their preference.
fn tc_filters(settings: Value, before: u16, after: u16, both: bool) {
    let spec = Spec {
        settings,
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let folder = fabric.pin_root().with_file_name("");
    let place = |device: &str, name: &str| {
        let foreign = Foreign {
            before: ForeignProgram::load(&format!("{name}_before"), &folder, Action::Pass).unwrap(),
            after: ForeignProgram::load(&format!("{name}_after"), &folder, Action::Pass).unwrap(),
        };
        // With clsact the qdisc exists: our filter is attached to it.
        let _there = fabric
            .node
            .run(&format!("tc qdisc add dev {device} clsact"));
        foreign
            .before
            .attach_filter(&fabric.node, device, before)
            .unwrap();
        foreign
            .after
            .attach_filter(&fabric.node, device, after)
            .unwrap();
        foreign
    };
    let (on_pod, on_eni) = (place(&pod.host_device(), "pod"), place(ENI, "eni"));
    if both {
        all_see_packets(&mut fabric, &on_pod, &on_eni);
    } else {
        let filters = [
            ("first at the pod", &on_pod.before),
            ("last at the pod", &on_pod.after),
            ("first at the ENI", &on_eni.before),
            ("last at the ENI", &on_eni.after),
        ];
        let seen = filters.map(|(_, program)| program.runs().unwrap());
        passed_on(&fabric, &pod);
        for ((place, program), before) in filters.into_iter().zip(seen) {
            let ran = program.runs().unwrap() - before;
            assert!(ran >= PASSED_ON, "behind ours, {place}: {ran} packets");
        }
        carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    }
    assert!(shown(&fabric, &pod.host_device(), "pod_before").is_some());
    fabric.finish().unwrap();
}

#[test]
fn tc_filters_before_and_after_our_filter() {
    tc_filters(json!({"datapath": {"attach": "clsact"}}), 10, 60_000, true);
}

#[test]
fn tc_filters_behind_our_tcx_program() {
    tc_filters(json!({"datapath": {"attach": "tcx"}}), 10, 60_000, false);
}
