//! Translated flows: look-up, opening, and their state.
//!
//! A flow is one entry, keyed by the addresses and ports of its replies. Its insertion with
//! `BPF_NOEXIST` is the claim of its port. Packets from the inside find it by its first candidate
//! port (`datapath_common::ports`), or by [`flow::moved`] if that was taken. Only [`flow::retire`]
//! removes flows.

mod attempt;
pub(crate) mod ending;
pub(crate) mod flow;
mod host_socket;
mod open;
mod ports;
mod request;
pub(crate) mod suspect;
pub(crate) mod tables;
pub(crate) mod tracked;

use core::num::NonZeroU32;

use datapath_common::abi::{Addr, HOST, NatControl};

pub(crate) use flow::{answered, peek_answered, tell};
pub(crate) use open::open_at_once;
pub(crate) use ports::in_range;
pub(crate) use request::{
    ask, ask_for, asked_for, is_inbound, is_own_port_free, known, note_inbound, note_stack, open,
    peek, peek_inbound, peek_stack, received, see_inbound, sent, stack_asked, stack_known,
    stack_of_receiver, stack_quoted, take_stack,
};

use crate::base::maps;
use crate::scratch::{FlowQuery, Sender};

/// External form of a flow in one register, which is 0 where there is none. The compiler leaves the
/// parts of an empty `Option` unwritten, and the verifier refuses to copy them.
#[derive(Clone, Copy)]
pub(crate) struct Mapping(NonZeroU32);

impl Mapping {
    const IS_SOME: u32 = 1 << 24;
    const SOME: NonZeroU32 = NonZeroU32::new(Self::IS_SOME).expect("one bit is set");
    const IS_OF_STACK: u32 = 1 << 25;

    /// Mapping of a flow that leaves by the ENI with this number, with this port in network byte
    /// order.
    #[inline(always)]
    fn new(eni: u8, port: u16) -> Self {
        Self(Self::SOME | (u32::from(eni) << 16 | u32::from(port)))
    }

    /// This mapping, with the flag for a flow whose packets take the host's stack.
    #[inline(always)]
    fn with_stack(self, takes_stack: bool) -> Self {
        Self(self.0 | if takes_stack { Self::IS_OF_STACK } else { 0 })
    }

    /// Number of the ENI by which it leaves, and whose translation address it has.
    #[inline(always)]
    pub(crate) fn eni(self) -> u8 {
        self.0.get().to_le_bytes()[2]
    }

    /// Its port, as it lies in a packet.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is taken")]
    pub(crate) fn port(self) -> u16 {
        self.0.get() as u16
    }

    /// True if its packets take the host's stack.
    #[inline(always)]
    pub(crate) fn takes_stack(self) -> bool {
        self.0.get() & Self::IS_OF_STACK != 0
    }

    /// Return value of a global function: 0 for none.
    #[inline(always)]
    fn to_register(mapping: Option<Self>) -> u32 {
        mapping.map_or(0, |mapping| mapping.0.get())
    }

    /// Inverse of [`Self::to_register`]; none for any other number.
    #[inline(always)]
    fn from_register(register: u32) -> Option<Self> {
        let is_some = |register: &NonZeroU32| register.get() & Self::IS_SOME != 0;
        NonZeroU32::new(register).filter(is_some).map(Self)
    }
}

/// From which side a packet is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    FromPod,
    ToPod,
}

impl Direction {
    /// As one register.
    #[inline(always)]
    pub(crate) fn to_register(self) -> u32 {
        u32::from(matches!(self, Self::ToPod))
    }

    /// Inverse of [`Self::to_register`].
    #[inline(always)]
    pub(crate) fn from_register(register: u32) -> Self {
        if register == 0 {
            Self::FromPod
        } else {
            Self::ToPod
        }
    }
}

/// By what a flow came that takes the host's stack: where its answers go.
#[derive(Clone, Copy)]
pub(crate) enum IngressEni {
    /// By this ENI, whose mark they get.
    Eni(u8),
    /// By a device that is no ENI. The host's own routes lead back there, so they get no mark.
    Elsewhere,
}

impl FlowQuery {
    /// Sender of the packet.
    #[inline(always)]
    fn sender(&self) -> Sender {
        Sender {
            endpoint: self.endpoint,
            policy: self.eni,
            owner: self.owner,
        }
    }

    /// The mapping with this port, as it lies in a packet.
    #[inline(always)]
    fn at(&self, port: u16) -> Mapping {
        Mapping::new(self.eni, port)
    }
}

/// Where the answers of a flow go.
#[derive(Clone, Copy)]
pub(crate) struct Inside {
    /// The pod's address, or the translation address itself.
    pub(crate) pod: Addr,
    /// The port, as it lies in a packet.
    pub(crate) port: u16,
    /// Owner of the flow: the pod's identity, or [`HOST`].
    pub(crate) endpoint: u32,
    /// True if its packets take the host's stack.
    pub(crate) stack: bool,
}

impl Inside {
    /// True if the flow is the host's.
    #[inline(always)]
    pub(crate) fn is_host(self) -> bool {
        self.endpoint == HOST
    }
}

/// True if packets that policy exempts may belong to translated flows.
#[inline(always)]
pub(crate) fn may_be_exempt() -> bool {
    control().is_some_and(|control| control.may_be_exempt != 0)
}

/// True if flows may be at the ENI that another policy gave them.
#[inline(always)]
fn may_be_elsewhere() -> bool {
    control().is_some_and(|control| control.may_be_elsewhere != 0)
}

#[inline(always)]
fn control() -> Option<&'static NatControl> {
    maps::NAT_CONTROL.get(0)
}
