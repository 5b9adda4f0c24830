//! The transport header: ports, and the role of a packet for an unknown flow.

use aya_ebpf::bindings::{__sk_buff, BPF_F_MARK_MANGLED_0};
use aya_ebpf::programs::TcContext;
use datapath_common::headers::{Icmp, IcmpMessage, PortPair, Tcp, protocol, sctp, udp};
use datapath_common::masquerade::FlowRole;
use datapath_common::outcome::DropReason;
use datapath_common::progress::tcp;

use super::{IP_OFFSET, Packet};
use crate::base::code::reason;
use crate::scratch::{self, AddrField, Ip, Ports, ScratchRef, Version, scratch};

/// Content that follows the IP header.
pub(crate) enum Transport {
    /// A protocol with ports.
    Ports(Ports),
    /// An ICMP error.
    Error,
    /// Anything else.
    None,
}

impl Ports {
    /// Those of a TCP segment.
    #[inline(always)]
    fn of_tcp(header: &Tcp) -> Self {
        Self {
            protocol: protocol::TCP,
            source: header.source,
            destination: header.destination,
            tcp_flags: header.flags,
            role: role(header),
        }
    }

    /// True if these are of a TCP segment after the one that opens its connection.
    #[inline(always)]
    pub(crate) fn is_past_syn(self) -> bool {
        self.protocol == protocol::TCP && self.tcp_flags & (tcp::SYN | tcp::ACK) != tcp::SYN
    }

    /// The port of a side.
    #[inline(always)]
    pub(crate) fn of(self, side: AddrField) -> u16 {
        match side {
            AddrField::Source => self.source,
            AddrField::Destination => self.destination,
        }
    }

    /// Which side asks, if this is ICMP.
    #[inline(always)]
    pub(crate) fn asker(self) -> AddrField {
        match self.role {
            FlowRole::Existing => AddrField::Destination,
            _ => AddrField::Source,
        }
    }

    /// Ports that an ICMP query has, or an answer.
    #[inline(always)]
    pub(crate) fn of_icmp(protocol: u8, id: u16, asker: AddrField) -> Self {
        let (source, destination, role) = match asker {
            AddrField::Source => (id, 0, FlowRole::New),
            AddrField::Destination => (0, id, FlowRole::Existing),
        };
        Self {
            protocol,
            source,
            destination,
            tcp_flags: 0,
            role,
        }
    }
}

/// Reads the transport header of a packet that is no later fragment, and whose IP header is the one
/// that is kept.
#[inline(always)]
pub(crate) fn read(packet: &Packet, scratch: ScratchRef) -> Result<Transport, DropReason> {
    match transport(packet.skb()) {
        NONE => Ok(Transport::None),
        ERROR => Ok(Transport::Error),
        PORTS => Ok(Transport::Ports(*scratch::read(scratch.ports()))),
        number => Err(reason(number)),
    }
}

// Answers of `transport`; all other numbers are those of drop reasons.
const NONE: u32 = 0;
const ERROR: u32 = 1;
const PORTS: u32 = 2;

/// Content that follows the IP header; ports are written.
///
/// This is a function of its own, so that the verifier does not follow the code after it once for
/// each protocol.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn transport(skb: *mut __sk_buff) -> u32 {
    let packet = Packet::new(TcContext::new(skb));
    let found = scratch().and_then(|scratch| {
        let found = read_here(&packet, scratch::read(scratch.ip()))?;
        Ok((scratch, found))
    });
    match found {
        Ok((scratch, Transport::Ports(ports))) => {
            scratch::write(scratch.ports(), ports);
            PORTS
        }
        Ok((_, Transport::Error)) => ERROR,
        Ok((_, Transport::None)) => NONE,
        Err(reason) => reason as u32,
    }
}

/// Inlined variant of [`read`], for a global function whose chain of calls has no stack left for
/// another call.
#[inline(always)]
pub(crate) fn read_here(packet: &Packet, ip: &Ip) -> Result<Transport, DropReason> {
    let protocol = ip.protocol;
    match protocol {
        protocol::TCP => Ok(Transport::Ports(Ports::of_tcp(&header(
            packet,
            ip,
            Tcp::MIN_LENGTH,
        )?))),
        protocol::UDP => Ok(Transport::Ports(pair(packet, ip, udp::LENGTH)?)),
        protocol::SCTP => Ok(Transport::Ports(pair(packet, ip, sctp::LENGTH)?)),
        protocol if protocol == ip.version.icmp() => {
            let header: Icmp = header(packet, ip, Icmp::LENGTH)?;
            let asker = match ip.version.icmp_message(header.kind) {
                IcmpMessage::Query => AddrField::Source,
                IcmpMessage::Answer => AddrField::Destination,
                IcmpMessage::Error => return Ok(Transport::Error),
                IcmpMessage::Other => return Ok(Transport::None),
            };
            Ok(Transport::Ports(Ports::of_icmp(protocol, header.id, asker)))
        }
        _ => Ok(Transport::None),
    }
}

/// The ports of a TCP segment that its receiver may leave unanswered: one without data, or one that
/// ends the connection. No SYN.
#[inline(always)]
pub(crate) fn last_word(packet: &Packet, ip: &Ip) -> Option<Ports> {
    let header: Tcp = header(packet, ip, Tcp::MIN_LENGTH).ok()?;
    let length = usize::from(header.data_offset >> 4) * 4;
    let is_bare = ip.transport + length >= IP_OFFSET + ip.length;
    let ends = header.flags & (tcp::FIN | tcp::RST) != 0;
    let opens = header.flags & tcp::SYN != 0;
    ((is_bare || ends) && !opens).then(|| Ports::of_tcp(&header))
}

/// The beginning of a transport header of which so many bytes must be there.
#[inline(always)]
fn header<T: zerocopy::FromBytes>(
    packet: &Packet,
    ip: &Ip,
    length: usize,
) -> Result<T, DropReason> {
    // Bytes after the IP packet are padding of the frame.
    if ip.transport + length > IP_OFFSET + ip.length {
        return Err(DropReason::Truncated);
    }
    packet.copy(ip.transport)
}

/// The ports of UDP or SCTP.
#[inline(always)]
fn pair(packet: &Packet, ip: &Ip, length: usize) -> Result<Ports, DropReason> {
    let header: PortPair = header(packet, ip, length)?;
    Ok(Ports {
        protocol: ip.protocol,
        source: header.source,
        destination: header.destination,
        tcp_flags: 0,
        role: FlowRole::New,
    })
}

/// Role of a TCP segment for an unknown connection.
#[inline(always)]
fn role(header: &Tcp) -> FlowRole {
    let has = |flags: u8| header.flags & flags == flags;
    if has(tcp::RST) {
        let is_refusal = has(tcp::ACK) && header.sequence == [0, 0];
        if is_refusal {
            FlowRole::Refuses
        } else {
            FlowRole::Existing
        }
    } else if has(tcp::SYN_ACK) {
        FlowRole::Accepts
    } else {
        FlowRole::New
    }
}

/// A transport checksum that can be updated.
pub(crate) struct ChecksumField {
    /// Where it lies in the transport header.
    pub(crate) offset: usize,
    /// True if it covers the IP addresses.
    pub(crate) covers_addresses: bool,
    /// Flags of `bpf_l4_csum_replace` that it needs.
    pub(crate) flags: u32,
}

impl ChecksumField {
    /// That of a protocol. SCTP's is no sum, and covers no addresses.
    #[inline(always)]
    pub(crate) fn of(version: Version, protocol: u8) -> Option<Self> {
        let (offset, covers_addresses, flags) = match protocol {
            protocol::TCP => (Tcp::CHECKSUM, true, 0),
            // 0 stands for no checksum and stays; of IPv6 too, where tunnels use it (RFC 6935).
            protocol::UDP => (udp::CHECKSUM, true, BPF_F_MARK_MANGLED_0),
            protocol if protocol == version.icmp() => {
                (Icmp::CHECKSUM, version.icmp_covers_addresses(), 0)
            }
            _ => return None,
        };
        Some(Self {
            offset,
            covers_addresses,
            flags,
        })
    }

    /// A field or none, of which the verifier does not know which.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "an offset in a header")]
    pub(crate) fn forgotten(scratch: ScratchRef, field: Option<Self>) -> Option<Self> {
        const COVERS: u32 = 1 << 8;
        const KEEPS_ZERO: u32 = 1 << 9;
        let number = field.map_or(0, |field| {
            let covers = if field.covers_addresses { COVERS } else { 0 };
            let keeps_zero = if field.flags == 0 { 0 } else { KEEPS_ZERO };
            field.offset as u32 | covers | keeps_zero
        });
        let number = scratch.forgotten(number);
        // No protocol's checksum lies at the beginning of its header.
        (number != 0).then_some(Self {
            offset: (number & 0xff) as usize,
            covers_addresses: number & COVERS != 0,
            flags: if number & KEEPS_ZERO == 0 {
                0
            } else {
                BPF_F_MARK_MANGLED_0
            },
        })
    }
}

/// Offset of a side's port in the transport header; none for the destination of an ICMP query. Only
/// ICMP depends on the querying side.
#[inline(always)]
pub(crate) fn port_offset(
    version: Version,
    protocol: u8,
    asker: AddrField,
    side: AddrField,
) -> Option<usize> {
    if protocol == version.icmp() {
        return (asker == side).then_some(Icmp::ID);
    }
    Some(match side {
        AddrField::Source => 0,
        AddrField::Destination => 2,
    })
}
