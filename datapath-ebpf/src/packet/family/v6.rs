//! IPv6.

use core::mem::offset_of;

use datapath_common::abi::{Addr, EniAddresses, EniEntry};
use datapath_common::checksum;
use datapath_common::headers::{Be16, IcmpMessage, Ipv6, protocol, word};
use datapath_common::outcome::DropReason;
use zerocopy::transmute;

use super::{Family, NewAddress, Quoted, ROUTER_SOLICITATION, extension};
use crate::base::settings;
use crate::packet::{IP_OFFSET, Packet};
use crate::scratch::{AddrField, FragmentKind, Ip, NextHop, Version};

/// IPv6.
pub(crate) enum V6 {}

impl Family for V6 {
    const ICMP: u8 = protocol::ICMPV6;
    const ICMP_COVERS_ADDRESSES: bool = true;

    #[inline(always)]
    fn icmp_message(kind: u8) -> IcmpMessage {
        IcmpMessage::of_v6(kind)
    }

    #[inline(always)]
    fn parse(packet: &mut Packet, ip: &mut Ip) -> Result<(), DropReason> {
        let room = packet.ip_room();
        let is_gso = packet.gso_size() != 0;
        let header: &Ipv6 = packet.header(IP_OFFSET)?;
        if header.version() != 6 {
            return Err(DropReason::MalformedHeader);
        }
        let length = match usize::from(header.payload_length.get()) {
            // A GSO packet above 64 KiB (BIG TCP, RFC 2675).
            0 if is_gso => room,
            length => length + Ipv6::LENGTH,
        };
        if length > room {
            return Err(DropReason::Truncated);
        }
        // Written one by one: held until all are known, they would fill the stack.
        (ip.source, ip.destination) = addresses(header)?;
        ip.version = Version::V6;
        let next_header = header.next_header;
        ip.ttl = header.hop_limit;
        ip.length = length;
        ip.has_options = false;
        let after_header = IP_OFFSET + Ipv6::LENGTH;
        let chain = extension::follow(packet, next_header, after_header, IP_OFFSET + length);
        ip.protocol = chain.protocol;
        ip.fragment = chain.fragment;
        ip.fragment_id = chain.fragment_id;
        ip.transport = chain.transport;
        Ok(())
    }

    #[inline(always)]
    fn quoted(packet: &Packet, offset: usize, end: usize) -> Result<Quoted, DropReason> {
        if offset + Ipv6::LENGTH > end {
            return Err(DropReason::Truncated);
        }
        // As words: halves of addresses that are aligned need no putting together on the stack.
        let words: [u64; 5] = packet.copy(offset)?;
        let [_, source @ .., _, _] = words;
        let [_, _, _, destination @ ..] = words;
        let header: Ipv6 = transmute!(words);
        if header.version() != 6 {
            return Err(DropReason::MalformedHeader);
        }
        let source = Addr::from_v6_halves(source);
        let destination = Addr::from_v6_halves(destination);
        check(source, destination)?;
        let chain = extension::follow(packet, header.next_header, offset + Ipv6::LENGTH, end);
        Ok(Quoted {
            source,
            destination,
            protocol: chain.protocol,
            transport: chain.transport,
            is_later_fragment: chain.fragment == FragmentKind::Later,
        })
    }

    #[inline(always)]
    fn decrement_ttl(packet: &mut Packet) -> Result<(), DropReason> {
        let header: &mut Ipv6 = packet.header_mut(IP_OFFSET)?;
        header.hop_limit = header.hop_limit.wrapping_sub(1);
        // No checksum in the header makes up for it: the sum of 16-bit words falls by this one.
        packet.update_sum(checksum::growth_of_lane(Be16::new(1).lane(), 0));
        Ok(())
    }

    #[inline(always)]
    fn set_address(packet: &mut Packet, new: NewAddress, growth: u32) -> Result<(), DropReason> {
        let growth = Self::set_quoted_address(packet, IP_OFFSET, new, growth)?;
        // The helper for a checksum over the addresses assumes that the header has its own
        // checksum, which compensates for the change, as in IPv4. The flag for IPv6 (`BPF_F_IPV6`)
        // exists since Linux 6.16.
        packet.update_sum(growth);
        Ok(())
    }

    #[inline(always)]
    fn set_quoted_address(
        packet: &mut Packet,
        offset: usize,
        new: NewAddress,
        growth: u32,
    ) -> Result<u32, DropReason> {
        let address = match new.side {
            AddrField::Source => offset_of!(Ipv6, source),
            AddrField::Destination => offset_of!(Ipv6, destination),
        };
        packet.store(offset + address, &new.to.words(), 0)?;
        Ok(growth)
    }

    #[inline(always)]
    fn addresses(eni: &EniEntry) -> &EniAddresses {
        eni.v6()
    }

    #[inline(always)]
    fn is_masqueraded() -> bool {
        settings::masquerades_v6()
    }

    #[inline(always)]
    fn next_hop(eni: &EniEntry) -> NextHop {
        const AF_INET6: u32 = 10;
        let [first, second, third, fourth] = Self::addresses(eni).gateway.words();
        [AF_INET6, first, second, third, fourth]
    }

    #[inline(always)]
    fn discovery(packet: &Packet) -> Option<u8> {
        let after_header = IP_OFFSET + Ipv6::LENGTH;
        let next_header_at = IP_OFFSET + offset_of!(Ipv6, next_header);
        let next_header: u8 = packet.copy(next_header_at).ok()?;
        let (protocol, offset) = if next_header == protocol::HOP_BY_HOP {
            // MLD carries a router alert (RFC 3810 section 5).
            let [next, words] = packet.copy::<[u8; 2]>(after_header).ok()?;
            (next, after_header + 8 + usize::from(words) * 8)
        } else {
            (next_header, after_header)
        };
        if protocol != protocol::ICMPV6 {
            return None;
        }
        let kind: u8 = packet.copy(offset).ok()?;
        // Router solicitation, neighbour solicitation and advertisement (RFC 4861), MLD report and
        // done (RFC 2710), MLDv2 report (RFC 3810).
        matches!(kind, ROUTER_SOLICITATION | 135 | 136 | 131 | 132 | 143).then_some(kind)
    }
}

/// The source and the destination.
#[inline(always)]
fn addresses(header: &Ipv6) -> Result<(Addr, Addr), DropReason> {
    let source = Addr::from_words(header.source.map(word));
    let destination = Addr::from_words(header.destination.map(word));
    check(source, destination)?;
    Ok((source, destination))
}

/// Refuses IPv4 addresses in IPv6 form. They are not allowed on the wire (RFC 4942 section 2.2),
/// and the maps would treat them as the IPv4 addresses that they contain.
#[inline(always)]
fn check(source: Addr, destination: Addr) -> Result<(), DropReason> {
    if source.is_v4() || destination.is_v4() {
        Err(DropReason::MalformedHeader)
    } else {
        Ok(())
    }
}
