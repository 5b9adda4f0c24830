//! Translated flows: finding them, opening them, and what else has to be known of them.
//!
//! A flow is one entry, keyed by what its answers carry; putting it in with `BPF_NOEXIST` is the
//! claim of its port. Packets from the inside find it by the port that it gets first
//! (`datapath_common::ports`), or, where that was taken, by [`moved`]. Nobody but [`retire`] removes
//! flows.

mod allocate;
mod blocks;
pub(crate) mod claim;
mod fill;
mod flow;
mod host_socket;
pub(crate) mod inbound;
mod lock;
mod moved;
mod note;
mod noted;
pub(crate) mod ports;
mod quota;
mod request;
pub(crate) mod retire;
mod search;
pub(crate) mod stack;
pub(crate) mod stats;
mod tables;

use datapath_common::abi::{Addr, HOST};

pub(crate) use flow::{answered, peek_answered};
pub(crate) use note::Side;
pub(crate) use ports::in_range;
pub(crate) use request::{
    Request, ask, ask_for, is_inbound, is_own_port_free, known, note_inbound, note_stack, open,
    peek, peek_inbound, peek_stack, see_inbound, stack_asked, stack_known, stack_of_receiver,
    stack_quoted, take_stack,
};

use crate::maps;

/// Number of the primary ENI.
pub(crate) const PRIMARY: u8 = 0;

/// What a flow looks like from the outside.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    /// Number of the ENI by which it leaves, and whose translation address it has.
    pub(crate) eni: u8,
    /// Its port, as it lies in a packet.
    pub(crate) port: u16,
    /// Whether its packets take the host's stack.
    pub(crate) stack: bool,
}

impl Mapping {
    const IS_SOME: u32 = 1 << 24;
    const IS_OF_STACK: u32 = 1 << 25;

    /// A mapping, or none, as one register: what a subprogram can return, and the compiler leaves
    /// the padding of anything else unwritten, which the verifier does not take.
    #[inline(always)]
    fn to_register(mapping: Option<Self>) -> u32 {
        mapping.map_or(0, |Self { eni, port, stack }| {
            let stack = if stack { Self::IS_OF_STACK } else { 0 };
            Self::IS_SOME | stack | u32::from(eni) << 16 | u32::from(port)
        })
    }

    /// What [`Self::to_register`] was given.
    #[inline(always)]
    fn from_register(register: u32) -> Option<Self> {
        let [port_low, port_high, eni, _flags] = register.to_le_bytes();
        (register & Self::IS_SOME != 0).then(|| Self {
            eni,
            port: u16::from_le_bytes([port_low, port_high]),
            stack: register & Self::IS_OF_STACK != 0,
        })
    }
}

/// By what a flow came that takes the host's stack: where its answers go.
#[derive(Clone, Copy)]
pub(crate) enum Came {
    /// By this ENI, whose mark they get.
    Eni(u8),
    /// By a device that is no ENI. The host's own routes lead back there, so they get no mark.
    Elsewhere,
}

/// Who sends a packet from the inside, and the ENIs by which its flow may leave.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    /// The pod's identity, or [`HOST`]. The next pod with the address has another, and no part in
    /// the flows that this one leaves behind.
    pub(crate) endpoint: u32,
    /// The one that policy gives to a new flow.
    pub(crate) policy: u8,
    /// The one that owns the source address.
    pub(crate) owner: u8,
}

/// Where the answers of a flow go.
#[derive(Clone, Copy)]
pub(crate) struct Inside {
    /// The pod's address, or the translation address itself.
    pub(crate) pod: Addr,
    /// The port, as it lies in a packet.
    pub(crate) port: u16,
    /// Whose it is: the pod's identity, or [`HOST`].
    pub(crate) endpoint: u32,
    /// Whether its packets take the host's stack.
    pub(crate) stack: bool,
}

impl Inside {
    /// Whether the flow is the host's.
    #[inline(always)]
    pub(crate) fn is_host(self) -> bool {
        self.endpoint == HOST
    }
}

/// Whether packets that policy exempts may belong to translated flows.
#[inline(always)]
pub(crate) fn may_be_exempt() -> bool {
    maps::NAT_CONTROL
        .get(0)
        .is_some_and(|control| control.may_be_exempt != 0)
}
