//! What the flow cache asks before it makes the entry of what a pod sends: how the packet leaves that was
//! prepared for.

use datapath_common::abi::PodTuple;
use datapath_common::masquerade::{Ruling, rule};
use datapath_common::outcome::DropReason;

use super::{Origin, exit, goes_up, leave_by};
use crate::family::Version;
use crate::nat::{self, Mapping};
use crate::packet::Packet;
use crate::work::{self, Parts};

/// What policy says of the flow of a packet.
pub(crate) enum Asked {
    /// It is not translated.
    Exempt,
    /// New ones are translated: it has been asked for.
    Flow,
}

/// Asks for the flow of a packet that was prepared for, if that is the next thing to do. All else is for
/// [`super::leave`].
#[inline(always)]
pub(crate) fn ask(work: Parts, tuple: PodTuple, tcp_flags: u8) -> Option<Asked> {
    // SAFETY: this CPU's own part of the work, of which nobody else holds a reference.
    let leaving = unsafe { &mut *work.leaving() };
    match rule(&leaving.question) {
        Ruling::Drop(_) => None,
        Ruling::Untranslated(_) => (!nat::may_be_exempt()).then_some(Asked::Exempt),
        Ruling::Translated(exit) => {
            leave_by(leaving, exit);
            nat::ask(work, tuple, leaving.sender, tcp_flags);
            Some(Asked::Flow)
        }
    }
}

/// A flow that is translated.
pub(crate) enum Flow {
    /// It is there, and looks like this from the outside.
    Known(Mapping),
    /// It takes the host's stack.
    OfStack,
    /// It is to be opened.
    New {
        /// The number of the ENI at which.
        policy: u8,
        /// Whether nobody has looked for it: it may be there, and no failure is final.
        is_supposed: bool,
    },
}

/// The flow that was asked for, of which nothing is noted, for a packet that can open one. One that is
/// most likely new is not looked for.
#[inline(always)]
pub(crate) fn flow(work: Parts, is_new: bool) -> Flow {
    let is_supposed = is_new && nat::suppose_new(work);
    if !is_supposed && let Some(mapping) = nat::known() {
        return if goes_up(mapping, Origin::Pod) {
            Flow::OfStack
        } else {
            Flow::Known(mapping)
        };
    }
    Flow::New {
        policy: work::read(work.leaving()).sender.policy,
        is_supposed,
    }
}

/// Opens the flow that was asked for at the ENI that policy gives.
#[inline(always)]
pub(crate) fn open(
    packet: &Packet,
    work: Parts,
    version: Version,
    policy: u8,
) -> Result<Mapping, DropReason> {
    let (_, snat) = exit(version, policy)?;
    nat::open(work, packet, snat)
}
