//! Return values of the programs: the one place where outcomes are counted and become return codes.

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC};
use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Outcome, Verdict};

use crate::packet::Packet;
use crate::{count, log};

/// The outcome of a packet, as the number of its [`Outcome`]. Functions pass the number, since a
/// conversion to the variant would make the verifier follow each possible outcome.
#[derive(Clone, Copy)]
pub(crate) struct Code(u32);

impl Code {
    /// The first number of a drop reason.
    const DROPS: u32 = 64;

    /// As one register.
    #[inline(always)]
    pub(crate) fn to_register(self) -> u32 {
        self.0
    }

    /// Inverse of [`Self::to_register`].
    #[inline(always)]
    pub(crate) fn from_register(register: u32) -> Self {
        Self(register)
    }

    /// Code for the result of a function that decides on a packet.
    #[inline(always)]
    pub(crate) fn of(result: Result<impl Into<Self>, DropReason>) -> Self {
        match result {
            Ok(code) => code.into(),
            Err(reason) => reason.into(),
        }
    }

    /// True if it is this verdict.
    #[inline(always)]
    pub(crate) fn is(self, verdict: Verdict) -> bool {
        self.0 == verdict as u32
    }

    /// Its slot among the counters of a program.
    #[inline(always)]
    pub(crate) fn slot(self, program: Program) -> u32 {
        program.slot(Outcome::Passed(Verdict::Local)) + self.0 % Outcome::SLOTS
    }

    /// Return code for the kernel.
    #[inline(always)]
    fn to_kernel(self) -> i32 {
        if self.0 >= Self::DROPS {
            TC_ACT_SHOT
        } else if REDIRECTS >> self.0 & 1 != 0 {
            TC_ACT_REDIRECT
        } else {
            TC_ACT_UNSPEC
        }
    }
}

impl From<Verdict> for Code {
    #[inline(always)]
    fn from(verdict: Verdict) -> Self {
        Self(verdict as u32)
    }
}

impl From<DropReason> for Code {
    #[inline(always)]
    fn from(reason: DropReason) -> Self {
        Self(reason as u32)
    }
}

/// Counts the outcome and gives the code for it.
///
/// A packet that goes on gets `TC_ACT_UNSPEC`: `TC_ACT_OK` would hide it from every later program
/// on a TCX hook.
#[inline(always)]
pub(crate) fn finish(program: Program, packet: &Packet, code: Code) -> i32 {
    count::slot(code.slot(program), packet.length());
    log::outcome(program, packet, code.to_register());
    code.to_kernel()
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
