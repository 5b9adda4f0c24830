//! The packet headers that the programs read, all of alignment 1: an IP header lies two bytes
//! off a word boundary behind Ethernet.

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Ether types (IEEE 802 numbers).
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
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
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ethernet {
    /// Destination address.
    pub destination: [u8; 6],
    /// Source address.
    pub source: [u8; 6],
    /// Ether type of what follows.
    pub ether_type: U16,
}

/// An IPv4 header without options (RFC 791 section 3.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4 {
    /// Version (high four bits) and header length in words.
    pub version_ihl: u8,
    /// Type of service.
    pub tos: u8,
    /// Length of the packet in bytes, header included.
    pub total_length: U16,
    /// Identification, for reassembly.
    pub identification: U16,
    /// Flags (high three bits) and fragment offset.
    pub fragment: U16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of what follows.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: U16,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
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
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6 {
    /// Version (high four bits), traffic class and flow label.
    pub version_class_label: U32,
    /// Length of what follows, in bytes.
    pub payload_length: U16,
    /// Protocol of what follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

impl Ipv6 {
    /// Length of the header in bytes.
    pub const LENGTH: usize = 40;

    /// The version field.
    #[inline(always)]
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version_class_label.as_bytes()[0] >> 4
    }
}

const _: () = assert!(size_of::<Ethernet>() == 14);
const _: () = assert!(size_of::<Ipv4>() == Ipv4::MIN_LENGTH);
const _: () = assert!(size_of::<Ipv6>() == Ipv6::LENGTH);
