//! IPv4.

use core::mem::offset_of;

use datapath_common::abi::{Addr, EniAddresses, EniEntry};
use datapath_common::checksum;
use datapath_common::headers::{Be16, IcmpMessage, Ipv4, protocol, word};
use datapath_common::outcome::DropReason;

use super::{Family, NewAddress, Quoted};
use crate::base::settings;
use crate::packet::{IP_OFFSET, Packet};
use crate::scratch::{AddrField, FragmentKind, Ip, NextHop, Version};

/// IPv4.
pub(crate) enum V4 {}

impl Family for V4 {
    const ICMP: u8 = protocol::ICMP;
    const ICMP_COVERS_ADDRESSES: bool = false;

    #[inline(always)]
    fn icmp_message(kind: u8) -> IcmpMessage {
        IcmpMessage::of_v4(kind)
    }

    #[inline(always)]
    fn parse(packet: &mut Packet, ip: &mut Ip) -> Result<(), DropReason> {
        let room = packet.ip_room();
        let is_gso = packet.gso_size() != 0;
        let header: &Ipv4 = packet.header(IP_OFFSET)?;
        let header_length = header.header_length();
        if header.version() != 4 || header_length < Ipv4::MIN_LENGTH {
            return Err(DropReason::MalformedHeader);
        }
        let length = match usize::from(header.total_length.get()) {
            // A GSO packet above 64 KiB (BIG TCP, include/linux/ip.h: iph_totlen).
            0 if is_gso => room,
            length => length,
        };
        if length < header_length {
            return Err(DropReason::MalformedHeader);
        }
        if length > room {
            return Err(DropReason::Truncated);
        }
        *ip = Ip {
            version: Version::V4,
            source: Addr::from_v4_word(word(header.source)),
            destination: Addr::from_v4_word(word(header.destination)),
            ttl: header.ttl,
            protocol: header.protocol,
            length,
            has_options: header_length > Ipv4::MIN_LENGTH,
            fragment: if header.is_later_fragment() {
                FragmentKind::Later
            } else if header.has_more_fragments() {
                FragmentKind::First
            } else {
                FragmentKind::Whole
            },
            fragment_id: u32::from(header.identification.lane()),
            transport: IP_OFFSET + header_length,
        };
        Ok(())
    }

    #[inline(always)]
    fn quoted(packet: &Packet, offset: usize, end: usize) -> Result<Quoted, DropReason> {
        if offset + Ipv4::MIN_LENGTH > end {
            return Err(DropReason::Truncated);
        }
        let header: Ipv4 = packet.copy(offset)?;
        let header_length = header.header_length();
        if header.version() != 4 || header_length < Ipv4::MIN_LENGTH {
            return Err(DropReason::MalformedHeader);
        }
        Ok(Quoted {
            source: Addr::from_v4_word(word(header.source)),
            destination: Addr::from_v4_word(word(header.destination)),
            protocol: header.protocol,
            transport: offset + header_length,
            is_later_fragment: header.is_later_fragment(),
        })
    }

    #[inline(always)]
    fn decrement_ttl(packet: &mut Packet) -> Result<(), DropReason> {
        let header: &mut Ipv4 = packet.header_mut(IP_OFFSET)?;
        header.ttl = header.ttl.wrapping_sub(1);
        let sum = checksum::update_for_ttl(header.checksum.lane());
        header.checksum = Be16::from_lane(sum);
        Ok(())
    }

    #[inline(always)]
    fn set_address(packet: &mut Packet, new: NewAddress, growth: u32) -> Result<(), DropReason> {
        let [_, _, _, to] = new.to.words();
        let header: &Ipv4 = packet.header(IP_OFFSET)?;
        let sum = checksum::update_by(header.checksum.lane(), growth);
        write(packet, IP_OFFSET, new.side, Written { to, sum })
    }

    #[inline(always)]
    fn set_quoted_address(
        packet: &mut Packet,
        offset: usize,
        new: NewAddress,
        growth: u32,
    ) -> Result<u32, DropReason> {
        let [_, _, _, to] = new.to.words();
        let from_sum: u16 = packet.copy(offset + offset_of!(Ipv4, checksum))?;
        let to_sum = checksum::update_by(from_sum, growth);
        let written = Written { to, sum: to_sum };
        write(packet, offset, new.side, written)?;
        Ok(checksum::add(
            growth,
            checksum::growth_of_lane(from_sum, to_sum),
        ))
    }

    #[inline(always)]
    fn addresses(eni: &EniEntry) -> &EniAddresses {
        eni.v4()
    }

    #[inline(always)]
    fn is_masqueraded() -> bool {
        settings::masquerades_v4()
    }

    #[inline(always)]
    fn next_hop(eni: &EniEntry) -> NextHop {
        const AF_INET: u32 = 2;
        let [_, _, _, address] = Self::addresses(eni).gateway.words();
        [AF_INET, address, 0, 0, 0]
    }

    #[inline(always)]
    fn discovery(_packet: &Packet) -> Option<u8> {
        None
    }
}

/// An address for a header, and the checksum that the header has then.
#[derive(Clone, Copy)]
struct Written {
    to: u32,
    sum: u16,
}

/// Writes an address of the header at an offset, and the checksum.
#[inline(always)]
fn write(
    packet: &mut Packet,
    offset: usize,
    side: AddrField,
    written: Written,
) -> Result<(), DropReason> {
    let Written { to, sum } = written;
    packet.store(offset + offset_of!(Ipv4, checksum), &sum, 0)?;
    let address = match side {
        AddrField::Source => offset_of!(Ipv4, source),
        AddrField::Destination => offset_of!(Ipv4, destination),
    };
    packet.store(offset + address, &to, 0)
}
