//! Facts about the current packet, and the change to write into it.

use datapath_common::abi::Addr;
use datapath_common::masquerade::FlowRole;

/// An IP version.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// One end of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddrField {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

/// Part of a datagram that a packet is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FragmentKind {
    /// All of it.
    Whole,
    /// Its first fragment, with the transport header.
    First,
    /// Another fragment.
    Later,
}

/// Fields of an IP header that the programs need.
pub(crate) struct Ip {
    pub(crate) version: Version,
    pub(crate) source: Addr,
    pub(crate) destination: Addr,
    /// TTL or hop limit.
    pub(crate) ttl: u8,
    /// Protocol of the transport header. If IPv6 extension headers cannot be followed, that of the
    /// first of these.
    pub(crate) protocol: u8,
    /// Length of the packet in bytes, header included.
    pub(crate) length: usize,
    /// True if the header carries IPv4 options.
    pub(crate) has_options: bool,
    /// Part of the datagram that the packet is.
    pub(crate) fragment: FragmentKind,
    /// Identification of the datagram, as it lies in the packet.
    pub(crate) fragment_id: u32,
    /// Where the transport header begins in the frame; of a later fragment, the data.
    pub(crate) transport: usize,
}

/// The ports of a packet. An ICMP query or answer has its identifier on the side that asks, and 0
/// on the other.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    /// IP protocol.
    pub(crate) protocol: u8,
    /// Source port, as it lies in the packet.
    pub(crate) source: u16,
    /// Destination port, as it lies in the packet.
    pub(crate) destination: u16,
    /// Flags of a TCP header, else 0.
    pub(crate) tcp_flags: u8,
    /// Role of the packet for an unknown flow.
    pub(crate) role: FlowRole,
}

/// The packet that an ICMP error quotes.
pub(crate) struct Inner {
    /// IP protocol.
    pub(crate) protocol: u8,
    /// Source.
    pub(crate) source: Addr,
    /// Destination.
    pub(crate) destination: Addr,
    /// Source port, as it lies in the packet.
    pub(crate) source_port: u16,
    /// Destination port, as it lies in the packet.
    pub(crate) destination_port: u16,
    /// Which side asks, if it is ICMP.
    pub(crate) asker: AddrField,
    /// Where its IP header begins.
    pub(crate) header: usize,
    /// Where its transport header begins.
    pub(crate) transport: usize,
    /// Where the error ends that quotes it.
    pub(crate) end: usize,
}

/// An address and a port to write.
pub(crate) struct Edit {
    pub(crate) side: AddrField,
    pub(crate) to: Addr,
    pub(crate) to_port: u16,
    /// For an ICMP error: the side of the error itself that gets the address as well.
    pub(crate) outer: Option<AddrField>,
}
