//! A policy program of somebody else ahead of ours: its word holds, and ours are not misled by what
//! it leaves in the mark. tc's own actions need modules that a kernel may lack, so the filters here
//! are programs too.

use bpf_tests::fabric::program::{Deed, ForeignProgram, Position};
use bpf_tests::fabric::traffic::ping;
use bpf_tests::fabric::{Fabric, Pod, Spec, command};
use ipam::Family;
use serde_json::{Value, json};

use crate::support::{CHANGE, End, PEER, carry_all, nothing_differs, within};

/// The pod's ENI.
const ENI: &str = "eth1";
/// Preference of a tc filter ahead of ours.
const AHEAD: u16 = 10;
/// What a policy program leaves in others' bits of the mark.
const THEIRS: u32 = 0x00c0_ffee;
/// What it leaves in ours: it does not know better.
const GARBAGE: u32 = 0xff00_0000;
/// Ours for ENI 1, in the default layout.
const OURS: u32 = 0x0200_0000;

/// How programs are attached: ours by this setting, theirs in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attach {
    Auto,
    Clsact,
}

/// A program ahead of ours; it goes with this value.
struct Ahead<'a> {
    program: ForeignProgram,
    fabric: &'a Fabric,
    attach: Attach,
    device: String,
}

impl<'a> Ahead<'a> {
    fn put(fabric: &'a Fabric, attach: Attach, device: &str, deed: Deed) -> Self {
        let folder = fabric.pin_root().with_file_name("");
        let mut program = ForeignProgram::load("policy", &folder, deed).unwrap();
        let node = &fabric.node;
        match attach {
            Attach::Auto => program.attach_tcx(node, device, Position::First),
            Attach::Clsact => program.attach_filter(node, device, AHEAD),
        }
        .unwrap();
        Self {
            program,
            fabric,
            attach,
            device: device.to_owned(),
        }
    }

    /// Takes it away. It ran.
    fn away(self) {
        assert!(self.program.runs().unwrap() > 0, "{self:?}");
        if self.attach == Attach::Clsact {
            let line = format!("filter del dev {} ingress pref {AHEAD}", self.device);
            let mut tc = self.fabric.node.command("tc");
            command::run(tc.args(line.split_whitespace())).unwrap();
        }
    }
}

impl std::fmt::Debug for Ahead<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {}", self.attach, self.device)
    }
}

fn settings(attach: Attach, path: &str) -> Value {
    let attach = match attach {
        Attach::Auto => "auto",
        Attach::Clsact => "clsact",
    };
    json!({"datapath": {"attach": attach, "path": path}})
}

/// Every packet of a pod that ours ever looked at.
fn looked_at(fabric: &Fabric) -> u64 {
    let counters = bpf_tests::fabric::counters::read(fabric).unwrap();
    let of_pods = counters
        .iter()
        .filter(|(name, _)| name.0 == "from_endpoint");
    of_pods.map(|(_, packets)| packets).sum()
}

/// What a program drops ahead of ours is dropped, and ours never sees it.
fn a_drop_holds(fabric: &Fabric, attach: Attach, pod: &Pod) {
    for device in [pod.host_device(), ENI.to_owned()] {
        let ahead = Ahead::put(fabric, attach, &device, Deed::Drop);
        let seen = looked_at(fabric);
        for family in Family::ALL {
            let (pod, peer) = (pod.at(family), fabric.peer(family));
            let answer = ping(pod, peer.address, &["-W", "0.2"]);
            assert!(answer.is_err(), "{ahead:?}: {answer:?}");
            let answer = ping(peer, pod.address, &["-W", "0.2"]);
            assert!(answer.is_err(), "{ahead:?}: {answer:?}");
        }
        if device != ENI {
            assert_eq!(looked_at(fabric), seen, "{ahead:?}: ours saw nothing");
        }
        ahead.away();
        carry_all(fabric, End::Pod(pod), PEER, &[1]);
        carry_all(fabric, PEER, End::Pod(pod), &[1]);
    }
}

/// What is ours in the mark is ours, whatever a program ahead put there, and the rest stays: seen
/// where the stack takes packets over, if it does.
fn a_mark_is_shared(fabric: &Fabric, attach: Attach, pod: &Pod, by_stack: bool) {
    let nft = |line: &str| fabric.node.run(&format!("nft {line}")).unwrap();
    nft("add table inet marks");
    for name in ["right", "wrong"] {
        nft(&format!("add counter inet marks {name}"));
    }
    nft("add chain inet marks pre { type filter hook prerouting priority raw ; }");
    for device in [pod.host_device(), ENI.to_owned()] {
        let ahead = Ahead::put(fabric, attach, &device, Deed::Mark(GARBAGE | THEIRS));
        nft("flush chain inet marks pre");
        nft("reset counters table inet marks");
        let mark = OURS | THEIRS;
        for (operator, name) in [("==", "right"), ("!=", "wrong")] {
            nft(&format!(
                "add rule inet marks pre iifname {device} meta l4proto {{ tcp, udp }} \
                 meta mark {operator} {mark} counter name {name}"
            ));
        }
        carry_all(fabric, End::Pod(pod), PEER, &[1]);
        carry_all(fabric, PEER, End::Pod(pod), &[1]);
        let packets = |name: &str| -> u64 {
            let text = nft(&format!("-j list counter inet marks {name}"));
            let answer: Value = serde_json::from_str(&text).unwrap();
            let list = answer["nftables"].as_array().unwrap();
            let counter = list
                .iter()
                .find_map(|object| object.get("counter"))
                .unwrap();
            counter["packets"].as_u64().unwrap()
        };
        assert_eq!(packets("wrong"), 0, "{ahead:?}");
        assert_eq!(packets("right") > 0, by_stack, "{ahead:?}");
        ahead.away();
    }
    nft("delete table inet marks");
}

/// A program that ends with OK hides ours. What the pod sends then takes the stack's way, and leaves
/// by its own ENI all the same: `to_network` sees to that.
fn who_hides_ours_leads_nobody_astray(fabric: &Fabric, attach: Attach, pod: &Pod) {
    let ahead = Ahead::put(fabric, attach, &pod.host_device(), Deed::Accept);
    let seen = looked_at(fabric);
    carry_all(fabric, End::Pod(pod), PEER, &[1]);
    carry_all(fabric, PEER, End::Pod(pod), &[1]);
    assert_eq!(looked_at(fabric), seen, "{ahead:?}: ours saw nothing");
    ahead.away();
    carry_all(fabric, End::Pod(pod), PEER, &[1]);
}

fn ahead_of_ours(attach: Attach, path: &str) {
    let spec = Spec {
        settings: settings(attach, path),
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    within(CHANGE, "all is there", || nothing_differs(&fabric));
    a_drop_holds(&fabric, attach, &pod);
    a_mark_is_shared(&fabric, attach, &pod, path == "stack");
    who_hides_ours_leads_nobody_astray(&fabric, attach, &pod);
    fabric.finish().unwrap();
}

#[test]
fn a_tcx_program_ahead_of_ours() {
    ahead_of_ours(Attach::Auto, "direct");
}

#[test]
fn a_tcx_program_ahead_of_ours_through_the_stack() {
    ahead_of_ours(Attach::Auto, "stack");
}

#[test]
fn a_tc_filter_ahead_of_ours() {
    ahead_of_ours(Attach::Clsact, "direct");
}

#[test]
fn a_tc_filter_ahead_of_ours_through_the_stack() {
    ahead_of_ours(Attach::Clsact, "stack");
}
