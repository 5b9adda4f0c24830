//! Differences between IPv4 and IPv6. Everything else is written once, and calls the packet's
//! [`Version`](crate::scratch::Version).

mod extension;
mod v4;
mod v6;
mod version;

use datapath_common::abi::{Addr, EniAddresses, EniEntry};
use datapath_common::headers::IcmpMessage;
use datapath_common::outcome::DropReason;

use super::Packet;
use crate::scratch::{AddrField, Ip, NextHop};

pub(crate) use v4::V4;
pub(crate) use v6::V6;

/// ICMPv6 type of a router solicitation (RFC 4861 section 4.1).
pub(crate) const ROUTER_SOLICITATION: u8 = 133;

impl Ip {
    /// The address of a side.
    #[inline(always)]
    pub(crate) fn address(&self, side: AddrField) -> Addr {
        match side {
            AddrField::Source => self.source,
            AddrField::Destination => self.destination,
        }
    }
}

/// Fields of the IP header that an ICMP error quotes.
pub(crate) struct Quoted {
    pub(crate) source: Addr,
    pub(crate) destination: Addr,
    /// Protocol of the transport header.
    pub(crate) protocol: u8,
    /// Where the transport header begins in the frame.
    pub(crate) transport: usize,
    /// True if there is none, because this is a later fragment.
    pub(crate) is_later_fragment: bool,
}

/// An address to write into an IP header, and the end of the packet that gets it.
#[derive(Clone, Copy)]
pub(crate) struct NewAddress {
    pub(crate) side: AddrField,
    pub(crate) to: Addr,
}

/// Operations that differ between the IP versions.
pub(crate) trait Family {
    /// Protocol number of its ICMP.
    const ICMP: u8;
    /// True if the checksum of its ICMP covers the IP addresses.
    const ICMP_COVERS_ADDRESSES: bool;

    /// Kind of an ICMP message of this type.
    fn icmp_message(kind: u8) -> IcmpMessage;

    /// Reads the IP header into `ip` and holds its lengths against what is there.
    fn parse(packet: &mut Packet, ip: &mut Ip) -> Result<(), DropReason>;

    /// Reads an IP header that an ICMP error, which ends at `end`, quotes at `offset`.
    fn quoted(packet: &Packet, offset: usize, end: usize) -> Result<Quoted, DropReason>;

    /// Lowers the TTL or hop limit by one. Only for a packet whose is at least 2.
    fn decrement_ttl(packet: &mut Packet) -> Result<(), DropReason>;

    /// Replaces an address, by which the sum of the header grows so much. Checksums after the IP
    /// header are not checked.
    ///
    /// Helpers write it. Before a program that writes to packets itself, the kernel makes every
    /// shared packet writable, and most that pass `to_network` are not changed.
    fn set_address(packet: &mut Packet, new: NewAddress, growth: u32) -> Result<(), DropReason>;

    /// Replaces an address in a header that an ICMP error quotes at `offset`. Returns the growth of
    /// the header's sum.
    fn set_quoted_address(
        packet: &mut Packet,
        offset: usize,
        new: NewAddress,
        growth: u32,
    ) -> Result<u32, DropReason>;

    /// Addresses that an ENI has of this family.
    fn addresses(eni: &EniEntry) -> &EniAddresses;

    /// True if this family is masqueraded.
    fn is_masqueraded() -> bool;

    /// The gateway of an ENI, as [`to_neighbour`](crate::path::redirect::to_neighbour) takes it.
    fn next_hop(eni: &EniEntry) -> NextHop;

    /// The ICMPv6 type of a packet of neighbour discovery or MLD; none for any other packet.
    fn discovery(packet: &Packet) -> Option<u8>;
}
