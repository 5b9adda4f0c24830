//! The packet headers that the programs read, of alignment 2 at most. A frame begins at an even
//! address, and the IP header after Ethernet is two bytes off a word boundary.
//!
//! Addresses are lanes of 16 bits: the BPF back end splits an access into single bytes if the
//! address may be odd.

mod transport;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use transport::{Icmp, IcmpMessage, PortPair, Tcp, sctp, udp};

/// A 16-bit number in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Be16(u16);

impl Be16 {
    /// A number.
    #[inline(always)]
    #[must_use]
    pub const fn new(value: u16) -> Self {
        Self(value.to_be())
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn get(self) -> u16 {
        u16::from_be(self.0)
    }

    /// The number from the two bytes as they lie in a packet.
    #[inline(always)]
    #[must_use]
    pub const fn from_lane(lane: u16) -> Self {
        Self(lane)
    }

    /// The two bytes as they lie in a packet.
    #[inline(always)]
    #[must_use]
    pub const fn lane(self) -> u16 {
        self.0
    }
}

/// The 32-bit word that two lanes make, as it lies in memory.
#[inline(always)]
#[must_use]
pub const fn word(lanes: [u16; 2]) -> u32 {
    let [first, second] = lanes;
    if cfg!(target_endian = "little") {
        first as u32 | (second as u32) << 16
    } else {
        (first as u32) << 16 | second as u32
    }
}

/// The two lanes of a word: what [`word`] takes.
#[inline(always)]
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the two halves of the word"
)]
pub const fn lanes(word: u32) -> [u16; 2] {
    let (low, high) = (word as u16, (word >> 16) as u16);
    if cfg!(target_endian = "little") {
        [low, high]
    } else {
        [high, low]
    }
}

/// Ether types (IEEE 802 numbers).
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A VLAN tag (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// An outer VLAN tag (IEEE 802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
}

/// IP protocol numbers (IANA).
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP of IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// An Ethernet header (IEEE 802.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ethernet {
    /// Destination address.
    pub destination: [u16; 3],
    /// Source address.
    pub source: [u16; 3],
    /// Ether type of what follows.
    pub ether_type: Be16,
}

/// An IPv4 header without options (RFC 791 section 3.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ipv4 {
    /// Version (high four bits) and header length in words.
    pub version_ihl: u8,
    /// Type of service.
    pub tos: u8,
    /// Length of the packet in bytes, header included.
    pub total_length: Be16,
    /// Identification, for reassembly.
    pub identification: Be16,
    /// Flags (high three bits) and fragment offset.
    pub fragment: Be16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of what follows.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: Be16,
    /// Source address.
    pub source: [u16; 2],
    /// Destination address.
    pub destination: [u16; 2],
}

impl Ipv4 {
    /// Length of a header without options, in bytes.
    pub const MIN_LENGTH: usize = 20;

    /// The version field.
    #[inline(always)]
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Length of the header in bytes, options included.
    #[inline(always)]
    #[must_use]
    pub const fn header_length(&self) -> usize {
        (self.version_ihl & 0x0f) as usize * 4
    }

    /// True if this is a piece of a datagram, but not the first.
    #[inline(always)]
    #[must_use]
    pub const fn is_later_fragment(&self) -> bool {
        self.fragment.get() & 0x1fff != 0
    }

    /// True if pieces of the datagram follow.
    #[inline(always)]
    #[must_use]
    pub const fn has_more_fragments(&self) -> bool {
        self.fragment.get() & 0x2000 != 0
    }
}

/// An IPv6 header (RFC 8200 section 3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ipv6 {
    /// Version (high four bits) and the high half of the traffic class.
    pub version_class: u8,
    /// The low half of the traffic class, and the high four bits of the flow label.
    pub class_label: u8,
    /// The rest of the flow label.
    pub label: Be16,
    /// Length of what follows, in bytes.
    pub payload_length: Be16,
    /// Protocol of what follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub source: [[u16; 2]; 4],
    /// Destination address.
    pub destination: [[u16; 2]; 4],
}

impl Ipv6 {
    /// Length of the header in bytes.
    pub const LENGTH: usize = 40;

    /// The version field.
    #[inline(always)]
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version_class >> 4
    }
}

/// An IPv6 fragment header (RFC 8200 section 4.5). Other extension headers begin likewise,
/// but have their length where this one has nothing.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ipv6Fragment {
    /// Protocol of what follows.
    pub next_header: u8,
    /// Of another extension header: its length in units of eight bytes, the first not counted.
    pub length: u8,
    /// Offset in units of eight bytes (high 13 bits), two reserved bits, and the bit that says that
    /// more follows.
    pub offset_more: Be16,
    /// Identification, as lanes.
    pub identification: [u16; 2],
}

impl Ipv6Fragment {
    /// Length of the header in bytes.
    pub const LENGTH: usize = 8;

    /// True if this is a piece of a datagram, but not the first.
    #[inline(always)]
    #[must_use]
    pub const fn is_later_fragment(&self) -> bool {
        self.offset_more.get() & 0xfff8 != 0
    }

    /// True if pieces of the datagram follow.
    #[inline(always)]
    #[must_use]
    pub const fn has_more_fragments(&self) -> bool {
        self.offset_more.get() & 1 != 0
    }
}

const _: () = assert!(size_of::<Ipv6Fragment>() == Ipv6Fragment::LENGTH);
const _: () = assert!(size_of::<Ethernet>() == 14);
const _: () = assert!(align_of::<Ethernet>() == 2);
const _: () = assert!(align_of::<Ipv4>() == 2);
const _: () = assert!(align_of::<Ipv6>() == 2);
const _: () = assert!(size_of::<Ipv4>() == Ipv4::MIN_LENGTH);
const _: () = assert!(size_of::<Ipv6>() == Ipv6::LENGTH);

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    #[test]
    fn lanes_and_numbers_lie_as_in_the_packet() {
        let bytes = [10, 0, 1, 200];
        let lanes: [u16; 2] = zerocopy::transmute!(bytes);
        assert_eq!(word(lanes), u32::from_ne_bytes(bytes));
        assert_eq!(super::lanes(word(lanes)), lanes);
        assert_eq!(Be16::new(0x86dd).as_bytes(), [0x86, 0xdd]);
        assert_eq!(Be16::new(0x86dd).get(), 0x86dd);
        assert_eq!(Be16::from_lane(Be16::new(0x86dd).lane()).get(), 0x86dd);
    }

    #[test]
    fn fragment_fields_tell_the_piece() {
        let v4 = |fragment: u16| Ipv4 {
            fragment: Be16::new(fragment),
            ..Ipv4::new_zeroed()
        };
        // Don't fragment, more, a last piece, one in between.
        for (field, later, more) in [
            (0x4000, false, false),
            (0x2000, false, true),
            (0x0001, true, false),
            (0x20b9, true, true),
        ] {
            assert_eq!(v4(field).is_later_fragment(), later, "{field:#x}");
            assert_eq!(v4(field).has_more_fragments(), more, "{field:#x}");
        }
        let v6 = |offset_more: u16| Ipv6Fragment {
            offset_more: Be16::new(offset_more),
            ..Ipv6Fragment::new_zeroed()
        };
        // An atomic fragment (RFC 6946) with its reserved bits set, and the same three.
        for (field, later, more) in [
            (0x0006, false, false),
            (0x0001, false, true),
            (0x0008, true, false),
            (0x05a9, true, true),
        ] {
            assert_eq!(v6(field).is_later_fragment(), later, "{field:#x}");
            assert_eq!(v6(field).has_more_fragments(), more, "{field:#x}");
        }
    }
}
