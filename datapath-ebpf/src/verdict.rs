//! What a program answers to the kernel: the one place where outcomes are counted and become
//! return codes.

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC};
use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Outcome, Verdict};

use crate::packet::Packet;
use crate::{count, log};

/// Counts the outcome and gives the code for it.
///
/// A packet that goes on gets `TC_ACT_UNSPEC`: `TC_ACT_OK` would hide it from every later program
/// on a TCX hook.
#[inline(always)]
pub(crate) fn finish(
    program: Program,
    packet: &Packet,
    result: Result<Verdict, DropReason>,
) -> i32 {
    let (outcome, code) = match result {
        Ok(verdict) => (Outcome::Passed(verdict), code(verdict)),
        Err(reason) => (Outcome::Dropped(reason), TC_ACT_SHOT),
    };
    count::outcome(program, outcome, packet.length());
    log::outcome(program, packet, outcome);
    code
}

/// The code of a packet that goes on.
#[inline(always)]
fn code(verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Local
        | Verdict::Eni
        | Verdict::Translated
        | Verdict::Returned
        | Verdict::HostMoved
        | Verdict::Inbound => TC_ACT_REDIRECT,
        Verdict::Host
        | Verdict::Service
        | Verdict::TtlExpired
        | Verdict::TooBig
        | Verdict::IpOptions
        | Verdict::Multicast
        | Verdict::NeighbourDiscovery
        | Verdict::LinkLocal
        | Verdict::Arp
        | Verdict::NotForPod
        | Verdict::ForeignFrame
        | Verdict::FromHost
        | Verdict::HostClaimed
        | Verdict::HostTranslated
        | Verdict::HostReturned
        | Verdict::Stack
        | Verdict::StackReturned
        | Verdict::StackFlow
        | Verdict::StackFlowReturned
        | Verdict::Reordered
        | Verdict::Noted
        | Verdict::ToPod
        | Verdict::Carried
        | Verdict::CarriedTranslated => TC_ACT_UNSPEC,
    }
}
