//! Records of fragmented datagrams by endpoint: key and value of `FRAGMENT_RINGS`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::DatagramKey;
use crate::abi::MAX_FRAGMENTS;

/// Value of `FRAGMENT_RINGS`: the latest datagrams of an endpoint that have a record, in one
/// direction. The next datagram takes the slot of the oldest one, whose record is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FragmentRing {
    /// Number of datagrams so far; it wraps around.
    pub count: u32,
    reserved: u32,
    /// The datagrams.
    pub slots: [DatagramKey; Self::SLOTS as usize],
}

impl FragmentRing {
    /// Slots of a ring, a power of two. `FRAGMENTS` has room for the full rings of 128 endpoints in
    /// both directions; Kubernetes recommends 110 pods a node. The fragments of a datagram follow
    /// one another, so an endpoint has as many datagrams under way as senders at one time.
    pub const SLOTS: u32 = MAX_FRAGMENTS / (2 * 128);

    /// A ring without datagrams. No packet has an empty key.
    pub const EMPTY: Self = Self {
        count: 0,
        reserved: 0,
        slots: [DatagramKey::EMPTY; Self::SLOTS as usize],
    };

    /// Key of the ring of the datagrams that an endpoint sends: its identity, or
    /// [`HOST`](crate::abi::HOST).
    #[inline(always)]
    #[must_use]
    pub const fn sent(endpoint: u32) -> u32 {
        endpoint
    }

    /// Key of the ring of the datagrams that an endpoint receives. An identity never has this bit.
    #[inline(always)]
    #[must_use]
    pub const fn received(endpoint: u32) -> u32 {
        endpoint | 1 << 31
    }

    /// Slot of the datagram with this number.
    #[inline(always)]
    #[must_use]
    pub const fn slot(number: u32) -> u32 {
        number % Self::SLOTS
    }
}

const _: () = assert!(FragmentRing::SLOTS.is_power_of_two());
// A record names its slot by a byte, and that of no slot is no slot's.
const _: () = assert!(FragmentRing::SLOTS <= super::Datagram::NO_SLOT as u32);
