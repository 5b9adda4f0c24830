//! Fragmented datagrams: key and value of `FRAGMENTS`.

pub(super) mod ring;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Addr, TransportAddr};

/// Key of `FRAGMENTS`: a datagram that came in pieces.
///
/// The protocol distinguishes IPv4 datagrams (RFC 791 section 3.2). It is 0 for IPv6, where
/// addresses and identification suffice and later fragments may name another one (RFC 8200 section
/// 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DatagramKey {
    /// Source, before translation.
    pub source: Addr,
    /// Destination, before translation.
    pub destination: Addr,
    /// Identification, as it lies in the packet.
    pub id: u32,
    /// Protocol of the datagram, or 0.
    pub protocol: u8,
    reserved: u8,
    reserved_lane: u16,
}

impl DatagramKey {
    /// A key that no datagram has.
    pub(super) const EMPTY: Self = Self::new(Addr::UNSPECIFIED, Addr::UNSPECIFIED, 0, 0);

    /// A key.
    #[inline(always)]
    #[must_use]
    pub const fn new(source: Addr, destination: Addr, id: u32, protocol: u8) -> Self {
        Self {
            source,
            destination,
            id,
            protocol,
            reserved: 0,
            reserved_lane: 0,
        }
    }
}

/// Value of `FRAGMENTS`: the record of the first fragment, or that it has not come yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Datagram {
    /// When the first fragment passed, or the one that came before it, in jiffies.
    pub seen: u64,
    /// Source port, as it lies in the packet.
    pub source_port: u16,
    /// Destination port, as it lies in the packet.
    pub destination_port: u16,
    /// Protocol of the datagram; 0 if it has no ports, and its later pieces just follow the first.
    pub protocol: u8,
    /// Not 0 for a datagram of which a later fragment came first, without ports: the host's stack
    /// has to put its fragments in order.
    pub reordered: u8,
    /// Not 0 for an ICMP error: protocol and ports are of the flow that it is about, as its answers
    /// carry them.
    pub is_error: u8,
    /// Slot of the record in its ring ([`super::FragmentRing`]), or [`Self::NO_SLOT`].
    pub slot: u8,
    /// The remote of that flow; of no meaning for another datagram.
    pub remote: Addr,
}

impl Datagram {
    /// Slot of a record that no ring has.
    pub const NO_SLOT: u8 = u8::MAX;

    /// A value without a slot.
    #[inline(always)]
    #[must_use]
    pub const fn new(seen: u64, protocol: u8, source_port: u16, destination_port: u16) -> Self {
        Self {
            seen,
            source_port,
            destination_port,
            protocol,
            reordered: 0,
            is_error: 0,
            slot: Self::NO_SLOT,
            remote: Addr::UNSPECIFIED,
        }
    }

    /// A value for an ICMP error about the flow of a remote.
    #[inline(always)]
    #[must_use]
    pub const fn error(seen: u64, protocol: u8, remote: TransportAddr, port: u16) -> Self {
        Self {
            is_error: 1,
            remote: remote.address,
            ..Self::new(seen, protocol, remote.port, port)
        }
    }

    /// A value for a datagram whose first piece has not come yet.
    #[inline(always)]
    #[must_use]
    pub const fn reordered(seen: u64) -> Self {
        Self {
            reordered: 1,
            ..Self::new(seen, 0, 0, 0)
        }
    }
}
