//! Headers of a frame.

use std::net::IpAddr;

use datapath_common::outcome::DropReason;

use super::wire::{address, byte, number16, number32};

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;

/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// ICMP.
pub const ICMP: u8 = 1;
/// ICMPv6.
pub const ICMPV6: u8 = 58;
/// SCTP.
pub const SCTP: u8 = 132;

/// Part of a datagram that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentKind {
    /// All of it.
    Whole,
    /// The first fragment.
    First,
    /// A later fragment.
    Later,
}

/// An IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    /// 4 or 6.
    pub version: u8,
    /// Offset of the header.
    pub start: usize,
    /// Source.
    pub source: IpAddr,
    /// Destination.
    pub destination: IpAddr,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Protocol of what follows all headers.
    pub protocol: u8,
    /// Length of the header, IPv4 options included.
    pub header_length: usize,
    /// Offset of the transport header.
    pub transport: usize,
    /// End of the packet; later bytes are padding of the frame.
    pub end: usize,
    /// Part of a datagram that this is.
    pub piece: FragmentKind,
    /// Identification of the datagram.
    pub id: u32,
}

impl Ip {
    /// True if it carries IPv4 options.
    #[must_use]
    pub fn has_options(&self) -> bool {
        self.version == 4 && self.header_length > 20
    }

    /// Offset of the source address.
    #[must_use]
    pub fn source_at(&self) -> usize {
        self.start + if self.version == 4 { 12 } else { 8 }
    }

    /// Offset of the destination address.
    #[must_use]
    pub fn destination_at(&self) -> usize {
        self.start + if self.version == 4 { 16 } else { 24 }
    }
}

/// Reads the IP header of a frame.
///
/// # Errors
/// The reason for which the packet is dropped.
pub fn ip(frame: &[u8], version: u8, is_gso: bool) -> Result<Ip, DropReason> {
    if version == 4 {
        ipv4(frame, is_gso)
    } else {
        ipv6(frame, is_gso)
    }
}

fn ipv4(frame: &[u8], is_gso: bool) -> Result<Ip, DropReason> {
    let start = ETHERNET;
    let room = frame.len() - start;
    if room < 20 {
        return Err(DropReason::Truncated);
    }
    let header_length = usize::from(frame[start] & 15) * 4;
    if frame[start] >> 4 != 4 || header_length < 20 {
        return Err(DropReason::MalformedHeader);
    }
    let length = match number16(frame, start + 2).map(usize::from) {
        Some(0) if is_gso => room,
        Some(length) => length,
        None => return Err(DropReason::Truncated),
    };
    if length < header_length {
        return Err(DropReason::MalformedHeader);
    }
    if length > room {
        return Err(DropReason::Truncated);
    }
    read_ipv4(frame, start, start + length).ok_or(DropReason::Truncated)
}

/// The fields of an IPv4 header, except lengths.
fn read_ipv4(frame: &[u8], start: usize, end: usize) -> Option<Ip> {
    let header_length = usize::from(byte(frame, start)? & 15) * 4;
    let fragment = number16(frame, start + 6)?;
    Some(Ip {
        version: 4,
        start,
        source: address(frame, start + 12, 4)?,
        destination: address(frame, start + 16, 4)?,
        ttl: byte(frame, start + 8)?,
        protocol: byte(frame, start + 9)?,
        header_length,
        transport: start + header_length,
        end,
        piece: piece(fragment & 0x1fff, fragment & 0x2000 != 0),
        id: u32::from(number16(frame, start + 4)?),
    })
}

fn piece(offset: u16, more: bool) -> FragmentKind {
    match (offset, more) {
        (0, false) => FragmentKind::Whole,
        (0, true) => FragmentKind::First,
        (_, _) => FragmentKind::Later,
    }
}

fn ipv6(frame: &[u8], is_gso: bool) -> Result<Ip, DropReason> {
    let start = ETHERNET;
    let room = frame.len() - start;
    if room < 40 {
        return Err(DropReason::Truncated);
    }
    if frame[start] >> 4 != 6 {
        return Err(DropReason::MalformedHeader);
    }
    let length = match number16(frame, start + 4).map(usize::from) {
        Some(0) if is_gso => room,
        Some(length) => length + 40,
        None => return Err(DropReason::Truncated),
    };
    if length > room {
        return Err(DropReason::Truncated);
    }
    let ip = read_ipv6(frame, start, start + length).ok_or(DropReason::Truncated)?;
    if has_mapped(&ip) {
        return Err(DropReason::MalformedHeader);
    }
    Ok(extensions(frame, ip))
}

/// True if an IPv6 header carries an IPv4 address.
fn has_mapped(ip: &Ip) -> bool {
    let is_mapped = |address| matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    is_mapped(ip.source) || is_mapped(ip.destination)
}

/// The fields of an IPv6 header, without its extension headers.
fn read_ipv6(frame: &[u8], start: usize, end: usize) -> Option<Ip> {
    Some(Ip {
        version: 6,
        start,
        source: address(frame, start + 8, 6)?,
        destination: address(frame, start + 24, 6)?,
        ttl: byte(frame, start + 7)?,
        protocol: byte(frame, start + 6)?,
        header_length: 40,
        transport: start + 40,
        end,
        piece: FragmentKind::Whole,
        id: 0,
    })
}

/// Limit for extension headers: every kind once, destination options twice.
const MAX_EXTENSIONS: usize = 5;

/// Follows the extension headers (RFC 8200 section 4) as far as possible. The protocol is that of
/// the first one that cannot be followed.
fn extensions(frame: &[u8], mut ip: Ip) -> Ip {
    for _ in 0..MAX_EXTENSIONS {
        let at = ip.transport;
        let Some(header) = frame.get(at..ip.end).and_then(<[u8]>::first_chunk::<8>) else {
            break;
        };
        match ip.protocol {
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => ip.transport += 8 + usize::from(header[1]) * 8,
            44 => {
                let field = u16::from_be_bytes([header[2], header[3]]);
                ip.piece = piece(field >> 3, field & 1 != 0);
                ip.id = number32(header, 4).unwrap_or_default();
                ip.transport += 8;
            }
            _ => break,
        }
        ip.protocol = header[0];
        if ip.piece == FragmentKind::Later {
            break;
        }
    }
    ip
}

/// Reads an IP header within an ICMP error that ends at `end`.
///
/// # Errors
/// When it is truncated, or malformed.
pub fn quoted(frame: &[u8], start: usize, end: usize, version: u8) -> Result<Ip, DropReason> {
    let is_v4 = version == 4;
    if start + if is_v4 { 20 } else { 40 } > end {
        return Err(DropReason::Truncated);
    }
    let ip = if is_v4 {
        read_ipv4(frame, start, end)
    } else {
        read_ipv6(frame, start, end)
    };
    let ip = ip.ok_or(DropReason::Truncated)?;
    if byte(frame, start).map(|first| first >> 4) != Some(version) || ip.header_length < 20 {
        return Err(DropReason::MalformedHeader);
    }
    if version == 4 {
        return Ok(ip);
    }
    if has_mapped(&ip) {
        return Err(DropReason::MalformedHeader);
    }
    Ok(extensions(frame, ip))
}
