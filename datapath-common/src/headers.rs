//! The packet headers that the programs read, of alignment 2 at most: a frame begins at an even
//! address, and an IP header lies two bytes off a word boundary behind Ethernet.
//!
//! Addresses are lanes of 16 bits: the BPF back end splits an access to what may lie at an odd
//! address into single bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
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

const _: () = assert!(size_of::<Ethernet>() == 14);
const _: () = assert!(align_of::<Ethernet>() == 2);
const _: () = assert!(align_of::<Ipv4>() == 2);
const _: () = assert!(align_of::<Ipv6>() == 2);
const _: () = assert!(size_of::<Ipv4>() == Ipv4::MIN_LENGTH);
const _: () = assert!(size_of::<Ipv6>() == Ipv6::LENGTH);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_and_numbers_lie_as_in_the_packet() {
        let bytes = [10, 0, 1, 200];
        let lanes: [u16; 2] = zerocopy::transmute!(bytes);
        assert_eq!(word(lanes), u32::from_ne_bytes(bytes));
        assert_eq!(Be16::new(0x86dd).as_bytes(), [0x86, 0xdd]);
        assert_eq!(Be16::new(0x86dd).get(), 0x86dd);
    }
}
