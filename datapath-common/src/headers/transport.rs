//! The headers after the IP header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Be16;

/// Role of an ICMP message for translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpMessage {
    /// A query with an identifier: an echo or, of IPv4, a time stamp.
    Query,
    /// The answer to one.
    Answer,
    /// An error, which quotes the packet that it is about.
    Error,
    /// Anything else.
    Other,
}

impl IcmpMessage {
    /// An IPv4 message by its type (RFC 792).
    #[inline(always)]
    #[must_use]
    pub const fn of_v4(kind: u8) -> Self {
        match kind {
            8 | 13 => Self::Query,
            0 | 14 => Self::Answer,
            // Destination unreachable, source quench, time exceeded, parameter problem.
            3 | 4 | 11 | 12 => Self::Error,
            _ => Self::Other,
        }
    }

    /// An IPv6 message by its type (RFC 4443).
    #[inline(always)]
    #[must_use]
    pub const fn of_v6(kind: u8) -> Self {
        match kind {
            128 => Self::Query,
            129 => Self::Answer,
            // Destination unreachable, packet too big, time exceeded, parameter problem.
            1..=4 => Self::Error,
            _ => Self::Other,
        }
    }
}

/// A TCP header up to its flags (RFC 9293 section 3.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Tcp {
    /// Source port, as it lies in the packet.
    pub source: u16,
    /// Destination port, as it lies in the packet.
    pub destination: u16,
    /// Sequence number, as lanes.
    pub sequence: [u16; 2],
    /// Acknowledgement number, as lanes.
    pub acknowledgement: [u16; 2],
    /// Length of the header in words (high four bits).
    pub data_offset: u8,
    /// Flags, [`crate::progress::tcp`].
    pub flags: u8,
}

impl Tcp {
    /// Length of a header without options, in bytes.
    pub const MIN_LENGTH: usize = 20;
    /// Where the checksum lies.
    pub const CHECKSUM: usize = 16;
    /// Where the sequence number lies.
    pub const SEQUENCE: usize = 4;
}

/// The ports with which headers of TCP, UDP and SCTP begin, as they lie in
/// the packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PortPair {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

/// UDP (RFC 768).
pub mod udp {
    /// Length of the header in bytes.
    pub const LENGTH: usize = 8;
    /// Where the checksum lies.
    pub const CHECKSUM: usize = 6;
}

/// SCTP (RFC 9260 section 3.1).
pub mod sctp {
    /// Length of the header in bytes.
    pub const LENGTH: usize = 12;
}

/// The head of an ICMP or ICMPv6 message (RFC 792, RFC 4443).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Icmp {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Checksum, as it lies in the packet.
    pub checksum: u16,
    /// Of a query or answer: the identifier, as it lies in the packet.
    pub id: u16,
    /// Of an echo: the sequence number.
    pub sequence: Be16,
}

impl Icmp {
    /// Length of the head in bytes; the packet that an error quotes follows it.
    pub const LENGTH: usize = 8;
    /// Where the checksum lies.
    pub const CHECKSUM: usize = 2;
    /// Where the identifier lies.
    pub const ID: usize = 4;
}

const _: () = assert!(size_of::<Tcp>() == 14);
const _: () = assert!(size_of::<Icmp>() == Icmp::LENGTH);
