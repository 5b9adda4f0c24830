//! Return values of the programs: the one place where outcomes are counted and become return codes.

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC};
use datapath_common::counter::Program;
use datapath_common::outcome::Verdict;

use super::log;
use crate::base::code::Code;
use crate::base::count;
use crate::packet::Packet;

/// Counts the outcome and gives the code for it.
///
/// A packet that goes on gets `TC_ACT_UNSPEC`: `TC_ACT_OK` would hide it from every later program
/// on a TCX hook.
#[inline(always)]
pub(crate) fn finish(program: Program, packet: &Packet, code: Code) -> i32 {
    count::slot(code.slot(program), packet.length());
    log::outcome(program, packet, code.to_register());
    to_kernel(code)
}

/// The first number of a drop reason.
const DROPS: u32 = 64;

/// Return code for the kernel.
#[inline(always)]
fn to_kernel(code: Code) -> i32 {
    let number = code.to_register();
    if number >= DROPS {
        TC_ACT_SHOT
    } else if REDIRECTS >> number & 1 != 0 {
        TC_ACT_REDIRECT
    } else {
        TC_ACT_UNSPEC
    }
}

/// A bit for each verdict whose packets have been redirected.
const REDIRECTS: u64 = {
    let (mut bits, mut index) = (0, 0);
    while index < Verdict::ALL.len() {
        let verdict = Verdict::ALL[index];
        if is_redirect(verdict) {
            bits |= 1 << verdict as u8;
        }
        index += 1;
    }
    bits
};

const fn is_redirect(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Local
        | Verdict::Eni
        | Verdict::Translated
        | Verdict::Returned
        | Verdict::HostMoved
        | Verdict::Inbound => true,
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
        | Verdict::CarriedTranslated => false,
    }
}
