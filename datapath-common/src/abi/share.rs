//! Ports of a destination's reserve that an endpoint has: key of `SHARES`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Addr, FlowKey};

/// Key of `SHARES`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ShareKey {
    /// The destination.
    pub remote: Addr,
    /// Owner of the flows: [`super::AddressEntry::identity`].
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
}
