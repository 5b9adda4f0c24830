//! Outcomes and drop reasons as numbers: return values of global functions.

use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Outcome, Verdict};

/// The outcome of a packet, as the number of its [`Outcome`]. Functions pass the number, since a
/// conversion to the variant would make the verifier follow each possible outcome.
#[derive(Clone, Copy)]
pub(crate) struct Code(u32);

impl Code {
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

/// Return value of a global function that acts or fails: 0, or the number of a drop reason.
#[inline(always)]
pub(crate) fn to_number(result: Result<(), DropReason>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(reason) => reason as u32,
    }
}

/// Result that the return value of such a function stands for. All reasons that these functions
/// give are listed here.
#[inline(always)]
pub(crate) fn from_number(number: u32) -> Result<(), DropReason> {
    match number {
        0 => Ok(()),
        number => Err(reason(number)),
    }
}

/// The reason with a number that a global function gave.
#[inline(always)]
pub(crate) fn reason(number: u32) -> DropReason {
    const NO_PORT: u32 = DropReason::NoPort as u32;
    const FLOWS_FULL: u32 = DropReason::FlowsFull as u32;
    const QUOTA_EXCEEDED: u32 = DropReason::QuotaExceeded as u32;
    const INBOUND_FULL: u32 = DropReason::InboundFull as u32;
    const INBOUND_QUOTA: u32 = DropReason::InboundQuotaExceeded as u32;
    const STACK_FULL: u32 = DropReason::StackFull as u32;
    const SCTP_PORT_TAKEN: u32 = DropReason::SctpPortTaken as u32;
    const TRUNCATED: u32 = DropReason::Truncated as u32;
    const NO_FLOW: u32 = DropReason::NoFlow as u32;
    const MALFORMED_HEADER: u32 = DropReason::MalformedHeader as u32;
    match number {
        NO_PORT => DropReason::NoPort,
        FLOWS_FULL => DropReason::FlowsFull,
        QUOTA_EXCEEDED => DropReason::QuotaExceeded,
        INBOUND_FULL => DropReason::InboundFull,
        INBOUND_QUOTA => DropReason::InboundQuotaExceeded,
        STACK_FULL => DropReason::StackFull,
        NO_FLOW => DropReason::NoFlow,
        SCTP_PORT_TAKEN => DropReason::SctpPortTaken,
        TRUNCATED => DropReason::Truncated,
        MALFORMED_HEADER => DropReason::MalformedHeader,
        _ => DropReason::HelperFailed,
    }
}
