//! An entry.

use datapath_common::abi::Addr;
use datapath_common::checksum;

use super::plain::Plain as _;
use crate::family::{V4, V6, Version};
use crate::redirect::NextHop;

/// The outcome of the packets of one direction of a flow.
#[repr(C)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) stamp: Stamp,
    /// The jiffy from which on it is not good any more.
    pub(super) until: u64,
    /// The protocol, and bits of [`FAMILY`].
    pub(super) kind: u32,
    /// Slot of the counter.
    pub(super) counter: u16,
    /// MTU of the device without the Ethernet header, in bytes.
    ///
    /// No IP packet is longer than the largest number.
    pub(super) mtu: u16,
    /// The device that the packet is redirected to.
    pub(super) device: u32,
    pub(super) exit: u8,
    pub(super) edit: u8,
    /// As it lies in a packet.
    pub(super) to_port: u16,
    /// The address to write.
    pub(super) to: [u32; 4],
    /// By how much that makes checksums grow.
    pub(super) growth: u32,
    /// By how much it does together with the TTL.
    pub(super) header_growth: u16,
    /// TCP flags with which a segment is not served before the flow has been updated. Without FIN,
    /// this side has ended the connection.
    pub(super) watched: u8,
    /// The ENI of the flow that a translation is of.
    pub(super) eni: u8,
    /// Group of the last packet that competed for the slot: two flows of a slot are rarely of the
    /// same group.
    pub(super) candidate: u32,
    /// The gateway, or both MACs as they lie in a frame if those are known.
    pub(super) hop: NextHop,
}

const _: () = assert!(size_of::<Entry>() <= 128);

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

/// Fields that all packets of an entry have in common.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Key {
    /// As they lie in a packet: source and destination, of IPv4 both in the last word.
    pub(super) addresses: [u64; 4],
    /// The device, and source and destination port as they lie in a packet.
    pub(super) place: u64,
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

/// When the entry was made, as its changes count.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Stamp {
    pub(super) epoch: u64,
    pub(super) generation: u32,
    /// The group of the flow.
    pub(super) group: u32,
}

/// Bits of [`Entry::kind`].
pub(super) const FAMILY: u32 = 0x300;
/// Of IPv4.
pub(super) const FAMILY_V4: u32 = 0x100;
/// Of IPv6.
pub(super) const FAMILY_V6: u32 = 0x200;

/// Values of [`Entry::exit`].
pub(super) mod exit {
    /// Into the namespace of an endpoint.
    pub(in crate::cache) const PEER: u8 = 1;
    /// To a gateway whose MAC the kernel is to find.
    pub(in crate::cache) const GATEWAY: u8 = 2;
    /// To one whose MAC is known.
    pub(in crate::cache) const FRAME: u8 = 3;
}

/// Values of [`Entry::edit`].
pub(super) mod edit {
    /// The packet is not translated.
    pub(in crate::cache) const NONE: u8 = 0;
    /// Its source is.
    pub(in crate::cache) const SOURCE: u8 = 1;
    /// Its destination is.
    pub(in crate::cache) const DESTINATION: u8 = 2;
}
