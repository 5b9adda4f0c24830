//! Ports of a destination's reserve, and entries of a table's reserve, that an endpoint has: key of
//! `SHARES`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{Addr, FlowKey, SharedTable};

/// Key of `SHARES`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ShareKey {
    /// The destination.
    pub remote: Addr,
    /// Owner of the flows: [`crate::abi::AddressEntry::identity`].
    pub endpoint: u32,
    /// The destination's port, as it lies in a packet.
    pub remote_port: u16,
    /// Number of the ENI.
    pub eni: u8,
    /// IP protocol.
    pub protocol: u8,
}

impl ShareKey {
    /// The share of an endpoint that a flow counts for.
    #[inline(always)]
    #[must_use]
    pub const fn of(key: &FlowKey, endpoint: u32) -> Self {
        Self {
            remote: key.remote,
            endpoint,
            remote_port: key.remote_port,
            eni: key.eni,
            protocol: key.protocol,
        }
    }

    /// The share of an endpoint in a table. No destination has its address, `0.0.0.0`: of zeroes
    /// alone, the compiler would fill it by a call, and that takes a stack frame.
    #[inline(always)]
    #[must_use]
    pub const fn of_table(table: SharedTable, endpoint: u32) -> Self {
        Self {
            remote: Addr::from_v4_word(0),
            endpoint,
            remote_port: 0,
            eni: table as u8,
            protocol: 0,
        }
    }
}
