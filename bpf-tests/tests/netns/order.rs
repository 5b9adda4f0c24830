//! A foreign policy program ahead of ours: its verdict holds, and its changes of the mark do not
//! mislead our programs. The filters here are programs too, because tc's own actions need modules
//! that a kernel may lack.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::program::{Action, ForeignProgram, Position};
use testkit::fabric::traffic::ping;
use testkit::fabric::{Fabric, Pod, Spec, command};

use crate::support::{CHANGE, End, PEER, carry_all, nothing_differs, within};

/// The pod's ENI.
const ENI: &str = "eth1";
/// Preference of a tc filter ahead of ours.
const AHEAD: u16 = 10;
/// Mark bits outside of our mask that a policy program sets.
const THEIRS: u32 = 0x00c0_ffee;
/// Mark bits within our mask that a policy program sets, although they are not its own.
const GARBAGE: u32 = 0xff00_0000;
/// Ours for ENI 1, in the default layout.
const OURS: u32 = 0x0200_0000;

/// Attachment of our programs, by this setting; the foreign ones are attached alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attach {
    Auto,
    Clsact,
}

/// A program ahead of ours; dropping it detaches it.
struct Ahead<'a> {
    program: ForeignProgram,
    fabric: &'a Fabric,
    attach: Attach,
    device: String,
}

impl<'a> Ahead<'a> {
    fn put(fabric: &'a Fabric, attach: Attach, device: &str, deed: Action) -> Self {
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

    /// Detaches the program, which must have run.
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

/// Number of packets of pods that our programs have handled.
fn looked_at(fabric: &Fabric) -> u64 {
    let counters = testkit::fabric::counters::read(fabric).unwrap();
    let of_pods = counters
        .iter()
        .filter(|(name, _)| name.0 == "from_endpoint");
    of_pods.map(|(_, packets)| packets).sum()
}

/// Packets that a program ahead of ours drops are dropped, and our programs never see them.
fn a_drop_holds(fabric: &Fabric, attach: Attach, pod: &Pod) {
    for device in [pod.host_device(), ENI.to_owned()] {
        let ahead = Ahead::put(fabric, attach, &device, Action::Drop);
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

/// Our mark bits are correct whatever a program ahead sets, and other bits stay.
///
/// With `by_stack`, this is checked where the stack takes over packets.
fn a_mark_is_shared(fabric: &Fabric, attach: Attach, pod: &Pod, by_stack: bool) {
    let nft = |line: &str| fabric.node.run(&format!("nft {line}")).unwrap();
    nft("add table inet marks");
    for name in ["right", "wrong"] {
        nft(&format!("add counter inet marks {name}"));
    }
    nft("add chain inet marks pre { type filter hook prerouting priority raw ; }");
    for device in [pod.host_device(), ENI.to_owned()] {
        let ahead = Ahead::put(fabric, attach, &device, Action::Mark(GARBAGE | THEIRS));
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

/// A program that ends with OK hides ours. The pod's packets then take the stack, and still leave
/// by their own ENI: `to_network` ensures that.
fn who_hides_ours_leads_nobody_astray(fabric: &Fabric, attach: Attach, pod: &Pod) {
    let ahead = Ahead::put(fabric, attach, &pod.host_device(), Action::Accept);
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
