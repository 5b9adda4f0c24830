//! What differs between IPv4 and IPv6. Everything else is written once, generic over [`Family`].

use aya_ebpf::bindings::{bpf_redir_neigh, bpf_redir_neigh__bindgen_ty_1};
use datapath_common::abi::{Addr, EniEntry};
use datapath_common::checksum;
use datapath_common::headers::{Be16, Ipv4, Ipv6, protocol, word};
use datapath_common::outcome::DropReason;

use crate::packet::{IP_OFFSET, Packet};

/// What the programs need to know of an IP header.
pub(crate) struct Ip {
    pub(crate) source: Addr,
    pub(crate) destination: Addr,
    /// TTL or hop limit.
    pub(crate) ttl: u8,
    /// Protocol of what follows the header.
    pub(crate) protocol: u8,
    /// Length of the header in bytes, IPv4 options included.
    pub(crate) header_length: usize,
    /// Whether the header carries IPv4 options.
    pub(crate) has_options: bool,
}

/// An IP version.
pub(crate) trait Family {
    /// Reads the IP header and holds its lengths against what is there.
    fn parse(packet: &mut Packet) -> Result<Ip, DropReason>;

    /// Lowers the TTL or hop limit by one. Only for a packet whose is at least 2.
    fn decrement_ttl(packet: &mut Packet) -> Result<(), DropReason>;

    /// The gateway of an ENI.
    fn next_hop(eni: &EniEntry) -> bpf_redir_neigh;

    /// Whether this is neighbour discovery or MLD.
    fn is_neighbour_discovery(packet: &Packet, ip: &Ip) -> bool;
}

/// IPv4.
pub(crate) enum V4 {}

impl Family for V4 {
    #[inline(always)]
    fn parse(packet: &mut Packet) -> Result<Ip, DropReason> {
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
        Ok(Ip {
            source: Addr::from_v4_word(word(header.source)),
            destination: Addr::from_v4_word(word(header.destination)),
            ttl: header.ttl,
            protocol: header.protocol,
            header_length,
            has_options: header_length > Ipv4::MIN_LENGTH,
        })
    }

    #[inline(always)]
    fn decrement_ttl(packet: &mut Packet) -> Result<(), DropReason> {
        let header: &mut Ipv4 = packet.header_mut(IP_OFFSET)?;
        // The checksum covers TTL and protocol as one word.
        let word = |ttl: u8| u16::from_be_bytes([ttl, header.protocol]);
        let ttl = header.ttl.wrapping_sub(1);
        let sum = checksum::update(header.checksum.get(), word(header.ttl), word(ttl));
        header.ttl = ttl;
        header.checksum = Be16::new(sum);
        Ok(())
    }

    #[inline(always)]
    fn next_hop(eni: &EniEntry) -> bpf_redir_neigh {
        const AF_INET: u32 = 2;
        neighbour(AF_INET, [eni.gateway_v4(), 0, 0, 0])
    }

    #[inline(always)]
    fn is_neighbour_discovery(_packet: &Packet, _ip: &Ip) -> bool {
        false
    }
}

/// IPv6.
pub(crate) enum V6 {}

impl Family for V6 {
    #[inline(always)]
    fn parse(packet: &mut Packet) -> Result<Ip, DropReason> {
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
        let source = Addr::from_v6_words(header.source.map(word));
        let destination = Addr::from_v6_words(header.destination.map(word));
        // Nobody may send these (RFC 4942 section 2.2), and to the maps they would be the IPv4
        // addresses that they contain.
        if source.is_v4() || destination.is_v4() {
            return Err(DropReason::MalformedHeader);
        }
        Ok(Ip {
            source,
            destination,
            ttl: header.hop_limit,
            protocol: header.next_header,
            header_length: Ipv6::LENGTH,
            has_options: false,
        })
    }

    #[inline(always)]
    fn decrement_ttl(packet: &mut Packet) -> Result<(), DropReason> {
        let header: &mut Ipv6 = packet.header_mut(IP_OFFSET)?;
        header.hop_limit = header.hop_limit.wrapping_sub(1);
        Ok(())
    }

    #[inline(always)]
    fn next_hop(eni: &EniEntry) -> bpf_redir_neigh {
        const AF_INET6: u32 = 10;
        neighbour(AF_INET6, eni.gateway_v6().words())
    }

    #[inline(always)]
    fn is_neighbour_discovery(packet: &Packet, ip: &Ip) -> bool {
        let after_header = IP_OFFSET + Ipv6::LENGTH;
        let (protocol, offset) = if ip.protocol == protocol::HOP_BY_HOP {
            // MLD carries a router alert (RFC 3810 section 5).
            let Ok([next, words]) = packet.copy::<[u8; 2]>(after_header) else {
                return false;
            };
            (next, after_header + 8 + usize::from(words) * 8)
        } else {
            (ip.protocol, after_header)
        };
        protocol == protocol::ICMPV6
            && matches!(
                packet.copy::<u8>(offset),
                // Router solicitation, neighbour solicitation and advertisement (RFC 4861), MLD
                // report and done (RFC 2710), MLDv2 report (RFC 3810).
                Ok(133 | 135 | 136 | 131 | 132 | 143)
            )
    }
}

/// A next hop. The whole union is written: the helper reads all of it.
#[inline(always)]
fn neighbour(family: u32, address: [u32; 4]) -> bpf_redir_neigh {
    bpf_redir_neigh {
        nh_family: family,
        __bindgen_anon_1: bpf_redir_neigh__bindgen_ty_1 { ipv6_nh: address },
    }
}
