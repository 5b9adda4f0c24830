//! The behaviour of an entry.

use datapath_common::abi::Addr;
use datapath_common::checksum;

use super::plain::FastHeader as _;
use crate::packet::family::{V4, V6};
use crate::scratch::{Entry, FAMILY, FAMILY_V4, Key, Version, edit};

impl Entry {
    /// [`Self::until`] of an entry that is being made, and of one that could not be made.
    ///
    /// No valid time has this value, and no unused slot.
    pub(super) const AWAITED: u64 = 1;

    /// Source and destination.
    #[inline(always)]
    pub(super) fn ends(&self) -> (Addr, Addr) {
        if self.is_v4() {
            V4::ends(&self.key.addresses)
        } else {
            V6::ends(&self.key.addresses)
        }
    }

    /// Source and destination of a packet that nothing has checked; none for an IPv6 packet with an
    /// IPv4 address, which is dropped.
    #[inline(always)]
    pub(super) fn unchecked_ends(&self) -> Option<(Addr, Addr)> {
        let (source, destination) = self.ends();
        let is_right = self.is_v4() || !(source.is_v4() || destination.is_v4());
        is_right.then_some((source, destination))
    }

    /// The IP version.
    #[inline(always)]
    pub(super) fn version(&self) -> Version {
        if self.is_v4() {
            Version::V4
        } else {
            Version::V6
        }
    }

    /// The protocol.
    #[inline(always)]
    pub(super) fn protocol(&self) -> u8 {
        let [protocol, ..] = self.kind.to_le_bytes();
        protocol
    }

    /// Change of checksums when an address of these words replaces the translated one.
    #[inline(always)]
    pub(super) fn growth_to(&self, to: [u32; 4]) -> u32 {
        let (source, destination) = self.ends();
        let from = if self.edit == edit::SOURCE {
            source.words()
        } else {
            destination.words()
        };
        if self.is_v4() {
            let ([.., from], [.., to]) = (from, to);
            checksum::growth_of_word(from, to)
        } else {
            checksum::growth(from, to)
        }
    }

    /// By how much the header's sum grows with the hop that is taken.
    #[inline(always)]
    pub(super) fn hop_growth(&self) -> u32 {
        if self.is_v4() {
            V4::HOP_GROWTH
        } else {
            V6::HOP_GROWTH
        }
    }

    #[inline(always)]
    fn is_v4(&self) -> bool {
        self.kind & FAMILY == FAMILY_V4
    }
}

impl Key {
    /// Value of [`Self::place`].
    #[inline(always)]
    pub(super) fn place(ifindex: u32, ports: u32) -> u64 {
        u64::from(ifindex) << 32 | u64::from(ports)
    }

    /// The device.
    #[inline(always)]
    pub(super) fn device(&self) -> u32 {
        (self.place >> 32) as u32
    }

    /// Source and destination port, as they lie in a packet.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is taken")]
    pub(super) fn ports(&self) -> u32 {
        self.place as u32
    }
}
