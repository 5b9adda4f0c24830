//! A pod's packet that leaves the node, on each path: from the pod itself, and from the stack by
//! either ENI. All three must end alike.

use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Verdict};
use testkit::packet::Frame;

use crate::case::{Case, Expect, on};
use crate::world::*;

/// The outcome of it.
#[derive(Clone, Copy)]
pub(crate) enum Leaves {
    /// Out of the owner's ENI as it is.
    As(Verdict),
    /// Out of an ENI with its address and this source port, or of an ICMP answer none.
    Translated(usize, u16),
    /// It is dropped.
    Drop(DropReason),
}

/// Pod A's packet. `net` is its family.
pub(crate) fn of_a(net: &Net, what: &str, frame: &Frame, leaves: Leaves) -> Vec<Case> {
    all_ways(
        &format!("{} {what}", net.family()),
        frame,
        leaves,
        |frame, eni, port| frame.from(net.snat[eni], port),
    )
}

/// A packet of pod A that `translate` gives the address of an ENI, and this port.
pub(crate) fn all_ways(
    name: &str,
    frame: &Frame,
    leaves: Leaves,
    translate: impl Fn(Frame, usize, u16) -> Frame,
) -> Vec<Case> {
    let name = |how: &str| format!("{name}, {how}");
    let sent = |frame: &Frame| {
        let lowered = frame.hop_limit - 1;
        frame.clone().hop_limit(lowered).bytes()
    };
    let (from_pod, stack): (Expect, [Expect; 2]) = match leaves {
        Leaves::Drop(reason) => (
            Expect::Drop(reason),
            [Expect::Drop(reason), Expect::Drop(reason)],
        ),
        Leaves::As(verdict) => (
            Expect::Redirect(verdict, sent(frame), done()),
            [
                Expect::Redirect(verdict, frame.bytes(), done()),
                Expect::Stack(Verdict::Carried, OTHERS),
            ],
        ),
        Leaves::Translated(eni, port) => {
            let frame = translate(frame.clone(), eni, port);
            let verdict = Verdict::Translated;
            let passed = Expect::Rewritten(Verdict::CarriedTranslated, frame.bytes(), OTHERS);
            let moved = Expect::Redirect(verdict, frame.bytes(), done());
            let stack = if eni == 0 {
                [passed, moved]
            } else {
                [moved, passed]
            };
            (Expect::Redirect(verdict, sent(&frame), done()), stack)
        }
    };
    let mut cases = vec![Case::new(
        Program::FromEndpoint,
        name("from the pod"),
        on(VETH_A, frame.bytes()),
        from_pod,
    )];
    for ((eni, device), expect) in [(0, ENI_0), (1, ENI_1)].into_iter().zip(stack) {
        let how = name(&format!("from the stack by ENI {eni}"));
        let bytes = frame.bytes();
        let case = Case::new(Program::ToNetwork, how, on(device, bytes), expect);
        cases.push(case.of_pod(VETH_A));
    }
    cases
}
