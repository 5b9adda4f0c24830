//! Contents of a packet after its IP headers: ports, and its part in a flow.

use datapath_common::outcome::DropReason;

use super::parse::{FragmentKind, ICMP, ICMPV6, Ip, SCTP, TCP, UDP};
use super::wire::{byte, number16, number32};

/// FIN of TCP.
pub const FIN: u8 = 1;
/// SYN of TCP.
pub const SYN: u8 = 2;
/// RST of TCP.
pub const RST: u8 = 4;
/// ACK of TCP.
pub const ACK: u8 = 16;

/// Part of a packet in an unknown flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It may open a flow.
    Opens,
    /// It accepts a flow from the outside.
    Accepts,
    /// It refuses a flow from the outside.
    Refuses,
    /// It belongs to a flow.
    Belongs,
}

/// The ports of a packet; an ICMP query has its id on the requesting side, 0 on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Of the sender.
    pub source: u16,
    /// Of the receiver.
    pub destination: u16,
    /// Flags of TCP; 0 for other protocols.
    pub flags: u8,
    /// Part of the packet in an unknown flow.
    pub part: Part,
}

/// Transport of a packet, after the IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A protocol with ports.
    Ports(Ports),
    /// An ICMP error.
    Error,
    /// Anything else.
    None,
}

/// True if an ICMP type is an error that quotes a packet.
fn is_error(version: u8, kind: u8) -> bool {
    if version == 4 {
        matches!(kind, 3 | 4 | 11 | 12)
    } else {
        matches!(kind, 1..=4)
    }
}

/// True for an ICMP type that is a query, false for the answer to one.
fn is_query(version: u8, kind: u8) -> Option<bool> {
    match (version, kind) {
        (4, 8 | 13) | (6, 128) => Some(true),
        (4, 0 | 14) | (6, 129) => Some(false),
        _ => None,
    }
}

/// Reads the transport header of a whole packet, or of a first fragment.
///
/// # Errors
/// When the header is truncated.
pub fn read(frame: &[u8], ip: &Ip) -> Result<Transport, DropReason> {
    let at = ip.transport;
    let needs = |length: usize| {
        if at + length > ip.end {
            return Err(DropReason::Truncated);
        }
        Ok(())
    };
    match (ip.version, ip.protocol) {
        (_, TCP) => {
            needs(20)?;
            let flags = byte(frame, at + 13).unwrap_or_default();
            let sequence = number32(frame, at + 4).unwrap_or_default();
            let part = if flags & RST != 0 {
                if flags & ACK != 0 && sequence == 0 {
                    Part::Refuses
                } else {
                    Part::Belongs
                }
            } else if flags & (SYN | ACK) == SYN | ACK {
                Part::Accepts
            } else {
                Part::Opens
            };
            Ok(Transport::Ports(ports(frame, at, flags, part)))
        }
        (_, UDP) => {
            needs(8)?;
            Ok(Transport::Ports(ports(frame, at, 0, Part::Opens)))
        }
        (_, SCTP) => {
            needs(12)?;
            Ok(Transport::Ports(ports(frame, at, 0, Part::Opens)))
        }
        (4, ICMP) | (6, ICMPV6) => {
            needs(8)?;
            let kind = byte(frame, at).unwrap_or_default();
            if is_error(ip.version, kind) {
                return Ok(Transport::Error);
            }
            let Some(asks) = is_query(ip.version, kind) else {
                return Ok(Transport::None);
            };
            let id = number16(frame, at + 4).unwrap_or_default();
            Ok(Transport::Ports(query(id, asks)))
        }
        _ => Ok(Transport::None),
    }
}

/// The ports of an ICMP query or its answer.
fn query(id: u16, asks: bool) -> Ports {
    Ports {
        source: if asks { id } else { 0 },
        destination: if asks { 0 } else { id },
        flags: 0,
        part: if asks { Part::Opens } else { Part::Belongs },
    }
}

fn ports(frame: &[u8], at: usize, flags: u8, part: Part) -> Ports {
    Ports {
        source: number16(frame, at).unwrap_or_default(),
        destination: number16(frame, at + 2).unwrap_or_default(),
        flags,
        part,
    }
}

/// The ports of a packet that an ICMP error quotes; `None` where it has none.
///
/// # Errors
/// When the quote is shorter than 64 bits of what the packet carried (RFC 792).
pub fn quoted(frame: &[u8], ip: &Ip) -> Result<Option<Ports>, DropReason> {
    let at = ip.transport;
    let is_icmp = matches!((ip.version, ip.protocol), (4, ICMP) | (6, ICMPV6));
    if ip.piece == FragmentKind::Later || !is_icmp && !matches!(ip.protocol, TCP | UDP | SCTP) {
        return Ok(None);
    }
    if at + 8 > ip.end {
        return Err(DropReason::Truncated);
    }
    if !is_icmp {
        return Ok(Some(ports(frame, at, 0, Part::Belongs)));
    }
    let kind = byte(frame, at).unwrap_or_default();
    let id = number16(frame, at + 4).unwrap_or_default();
    Ok(is_query(ip.version, kind).map(|asks| query(id, asks)))
}

/// The offset of the port on a side; `None` for the side that answers an ICMP query.
#[must_use]
pub fn port_at(frame: &[u8], ip: &Ip, is_source: bool) -> Option<usize> {
    match (ip.version, ip.protocol) {
        (4, ICMP) | (6, ICMPV6) => {
            let asks = is_query(ip.version, byte(frame, ip.transport)?)?;
            (asks == is_source).then_some(ip.transport + 4)
        }
        _ if is_source => Some(ip.transport),
        _ => Some(ip.transport + 2),
    }
}

/// The offset of the checksum that covers the ports; SCTP's covers no addresses, and its ports
/// never change.
#[must_use]
pub fn checksum_at(ip: &Ip) -> Option<usize> {
    match (ip.version, ip.protocol) {
        (_, TCP) => Some(ip.transport + 16),
        (_, UDP) => Some(ip.transport + 6),
        (4, ICMP) | (6, ICMPV6) => Some(ip.transport + 2),
        _ => None,
    }
}
