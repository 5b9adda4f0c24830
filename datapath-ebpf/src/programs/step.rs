//! The next step for a packet, as the return value of a global function.

use datapath_common::outcome::{DropReason, Outcome, Verdict};

use crate::base::code::Code;

/// Next step of a program for a packet.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Nothing more.
    Done(Verdict),
    /// Send it out of the node, for a pod.
    Leave,
    /// Let it go on, as the host's.
    Host,
    /// Translate it back, if it answers a translated flow of the ENI with this number.
    Answer(u8),
}

impl Step {
    /// Return value of a global function for [`Self::Leave`]; it is no outcome's number.
    pub(crate) const LEAVE: u32 = Outcome::SLOTS;
    /// Return value of a global function for [`Self::Host`].
    pub(crate) const HOST: u32 = Outcome::SLOTS + 1;
    /// Return value of a global function for [`Self::Answer`], without the number of the ENI.
    const ANSWER: u32 = 0x100;

    /// Return value of a global function that takes the first steps.
    #[inline(always)]
    pub(crate) fn to_number(result: Result<Self, DropReason>) -> u32 {
        match result {
            Ok(Self::Done(verdict)) => Code::from(verdict).to_register(),
            Ok(Self::Leave) => Self::LEAVE,
            Ok(Self::Host) => Self::HOST,
            Ok(Self::Answer(eni)) => Self::ANSWER | u32::from(eni),
            Err(reason) => Code::from(reason).to_register(),
        }
    }

    /// The ENI of a [`Self::Answer`].
    #[inline(always)]
    pub(crate) fn answered_eni(number: u32) -> Option<u8> {
        (number & Self::ANSWER != 0).then_some(number.to_le_bytes()[0])
    }
}
