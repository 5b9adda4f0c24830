//! A packet without the parts in which two correct translations may differ. These are the
//! translation address and port, ids of packets that a stack made by itself, and checksums, once
//! they are verified.

use std::net::IpAddr;

use anyhow::{Result, bail, ensure};

use crate::build::{SCTP, TCP, UDP, checksum, checksum_offset, icmp, transport_checksum};

/// Replacement for a checksum that was correct.
const RIGHT: [u8; 2] = [0xc5, 0xc5];

/// The address and port that the outside sees, and the pod's that they replace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) inside: IpAddr,
    pub(crate) inside_port: u16,
}

/// Offsets of the parts of an IP packet.
struct Layout {
    is_v4: bool,
    protocol: u8,
    transport: usize,
    offset: usize,
    more: bool,
    id: u32,
    /// Offset of an IPv6 fragment header.
    fragment: Option<usize>,
    /// True if the packet may contain a quote.
    is_error: bool,
}

fn word(packet: &[u8], at: usize) -> Result<u16> {
    match packet.get(at..at + 2) {
        Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
        _ => bail!("{} bytes end before {at}", packet.len()),
    }
}

fn layout(packet: &[u8]) -> Result<Layout> {
    let first = *packet.first().unwrap_or(&0);
    let mut layout = if first >> 4 == 4 {
        let field = word(packet, 6)?;
        Layout {
            is_v4: true,
            protocol: *packet.get(9).unwrap_or(&0),
            transport: usize::from(first & 0xf) * 4,
            offset: usize::from(field & 0x1fff) * 8,
            more: field & 0x2000 != 0,
            id: u32::from(word(packet, 4)?),
            fragment: None,
            is_error: false,
        }
    } else {
        v6_layout(packet)?
    };
    let kind = packet.get(layout.transport).copied().unwrap_or_default();
    layout.is_error = layout.offset == 0
        && match layout.protocol {
            1 => matches!(kind, 3 | 4 | 11 | 12),
            58 => matches!(kind, 1..=4),
            _ => false,
        };
    Ok(layout)
}

fn v6_layout(packet: &[u8]) -> Result<Layout> {
    let mut layout = Layout {
        is_v4: false,
        protocol: *packet.get(6).unwrap_or(&0),
        transport: 40,
        offset: 0,
        more: false,
        id: 0,
        fragment: None,
        is_error: false,
    };
    loop {
        let at = layout.transport;
        match layout.protocol {
            44 => {
                layout.fragment = Some(at);
                let field = word(packet, at + 2)?;
                layout.offset = usize::from(field & !7);
                layout.more = field & 1 != 0;
                layout.id =
                    u32::from(word(packet, at + 4)?) << 16 | u32::from(word(packet, at + 6)?);
                layout.protocol = packet[at];
                layout.transport += 8;
            }
            0 | 43 | 60 => {
                layout.transport += 8 + usize::from(word(packet, at)? & 0xff) * 8;
                layout.protocol = packet[at];
            }
            _ => return Ok(layout),
        }
    }
}

impl Layout {
    fn addresses(&self) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        if self.is_v4 {
            (12..16, 16..20)
        } else {
            (8..24, 24..40)
        }
    }
}

/// Packets of one packet or its fragments, with the mapping undone. `original` is the whole
/// transport part of the packet that an error quotes.
pub(crate) fn canonical(
    frames: &[Vec<u8>],
    mapping: Option<&Mapping>,
    original: Option<&[u8]>,
    is_from_node: bool,
) -> Result<Vec<Vec<u8>>> {
    let mut frames = frames.to_vec();
    for frame in &mut frames {
        ensure!(frame.len() > 34, "a frame of {} bytes", frame.len());
    }
    // A packet of the stack itself has no checksum yet, as the device would compute it.
    if !is_from_node {
        check_datagrams(&frames)?;
    }
    for frame in &mut frames {
        let (_, packet) = frame.split_at_mut(14);
        undo(packet, mapping, original, is_from_node)?;
    }
    Ok(frames)
}

/// Reassembles fragments, and checks the checksum of every whole datagram.
fn check_datagrams(frames: &[Vec<u8>]) -> Result<()> {
    let mut done = Vec::new();
    for frame in frames {
        let first = layout(&frame[14..])?;
        let (source, destination) = first.addresses();
        if done.contains(&(first.protocol, first.id)) && (first.more || first.offset != 0) {
            continue;
        }
        done.push((first.protocol, first.id));
        let mut bytes = Vec::new();
        let mut pieces = Vec::new();
        for frame in frames {
            let piece = layout(&frame[14..])?;
            let end = 14 + total_length(&frame[14..])?;
            if piece.id == first.id && piece.protocol == first.protocol {
                pieces.push((piece.offset, piece.more, &frame[14 + piece.transport..end]));
            }
        }
        if !first.more && first.offset == 0 {
            bytes.extend(&frame[14 + first.transport..14 + total_length(&frame[14..])?]);
        } else {
            pieces.sort_unstable();
            for (offset, _, piece) in &pieces {
                if *offset != bytes.len() {
                    break;
                }
                bytes.extend(*piece);
            }
            let is_whole = pieces
                .last()
                .is_some_and(|(offset, more, piece)| !more && offset + piece.len() == bytes.len());
            if !is_whole {
                continue;
            }
        }
        let packet = &frame[14..];
        check_sum(
            &packet[source],
            &packet[destination],
            first.protocol,
            &bytes,
        )?;
    }
    Ok(())
}

fn check_sum(source: &[u8], destination: &[u8], protocol: u8, bytes: &[u8]) -> Result<()> {
    let Some(offset) = checksum_offset(protocol) else {
        return Ok(());
    };
    if protocol == UDP && word(bytes, offset)? == 0 {
        return Ok(());
    }
    let sum = transport_checksum(source, destination, protocol, bytes);
    ensure!(
        sum == 0,
        "protocol {protocol}: the checksum {:#06x} is wrong by {sum:#06x}",
        word(bytes, offset)?
    );
    Ok(())
}

/// Length of an IP packet by its header; later bytes are padding of the frame.
fn total_length(packet: &[u8]) -> Result<usize> {
    let length = if packet[0] >> 4 == 4 {
        usize::from(word(packet, 2)?)
    } else {
        40 + usize::from(word(packet, 4)?)
    };
    ensure!(length <= packet.len(), "a packet shorter than it says");
    Ok(length)
}

/// Undoes the mapping in a packet and in its quote.
fn undo(
    packet: &mut [u8],
    mapping: Option<&Mapping>,
    original: Option<&[u8]>,
    is_from_node: bool,
) -> Result<()> {
    let parts = layout(packet)?;
    if parts.is_v4 {
        ensure!(
            checksum(&packet[..usize::from(packet[0] & 0xf) * 4]) == 0,
            "the checksum of an IPv4 header is wrong"
        );
        packet[10..12].copy_from_slice(&RIGHT);
        if is_from_node {
            packet[4..6].fill(0);
        }
    } else if let Some(at) = parts.fragment {
        // conntrack reassembles datagrams and fragments them again, with an id of its own.
        packet[at + 4..at + 8].fill(0);
    }
    if parts.is_error {
        let quoted = parts.transport + 8;
        ensure!(packet.len() >= quoted + 28, "an error with a short quote");
        undo_quote(&mut packet[quoted..], mapping, original)?;
    }
    if parts.offset == 0
        && let Some(at) = checksum_offset(parts.protocol)
    {
        mark_right(packet, parts.transport + at, parts.protocol);
    }
    if let Some(mapping) = mapping {
        rename(packet, &parts, mapping);
    }
    Ok(())
}

/// Replaces a checksum that is in place; a UDP checksum of 0 means that there is none.
fn mark_right(packet: &mut [u8], at: usize, protocol: u8) {
    if let Some(field) = packet.get_mut(at..at + 2)
        && !(protocol == UDP && field == [0, 0])
    {
        field.copy_from_slice(&RIGHT);
    }
}

fn undo_quote(packet: &mut [u8], mapping: Option<&Mapping>, original: Option<&[u8]>) -> Result<()> {
    let parts = layout(packet)?;
    if parts.is_v4 {
        let header = usize::from(packet[0] & 0xf) * 4;
        ensure!(
            packet.len() >= header && checksum(&packet[..header]) == 0,
            "the checksum of a quoted IPv4 header is wrong"
        );
        packet[10..12].copy_from_slice(&RIGHT);
    }
    if let (Some(original), Some(at)) = (original, checksum_offset(parts.protocol))
        && parts.offset == 0
        && !parts.more
        && packet.len() >= parts.transport + at + 2
    {
        // The part that the quote omits is unchanged.
        let mut bytes = packet[parts.transport..].to_vec();
        bytes.extend(original.iter().skip(bytes.len()));
        let (source, destination) = parts.addresses();
        check_sum(
            &packet[source],
            &packet[destination],
            parts.protocol,
            &bytes,
        )?;
        mark_right(packet, parts.transport + at, parts.protocol);
    }
    if let Some(mapping) = mapping {
        rename(packet, &parts, mapping);
    }
    Ok(())
}

/// Replaces the mapping's address and port by the pod's.
fn rename(packet: &mut [u8], parts: &Layout, mapping: &Mapping) {
    let (source, destination) = parts.addresses();
    let (outside, inside) = (octets(mapping.address), octets(mapping.inside));
    let has_ports = matches!(parts.protocol, TCP | UDP | SCTP) && parts.offset == 0;
    for (range, port) in [(source, 0), (destination, 2)] {
        if packet[range.clone()] != outside {
            continue;
        }
        packet[range].copy_from_slice(&inside);
        let port = if has_ports {
            parts.transport + port
        } else if is_query(packet, parts) {
            parts.transport + 4
        } else {
            continue;
        };
        if let Some(field) = packet.get_mut(port..port + 2)
            && field == mapping.port.to_be_bytes()
        {
            field.copy_from_slice(&mapping.inside_port.to_be_bytes());
        }
    }
}

fn is_query(packet: &[u8], parts: &Layout) -> bool {
    let kind = packet.get(parts.transport).copied().unwrap_or_default();
    parts.offset == 0
        && match parts.protocol {
            1 => matches!(kind, 0 | 8),
            58 => matches!(kind, 128 | 129),
            _ => false,
        }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The source port or the id of a query of a frame; a later fragment has none.
pub(crate) fn source_port(frame: &[u8]) -> Option<u16> {
    let packet = frame.get(14..)?;
    let parts = layout(packet).ok()?;
    if parts.offset != 0 {
        return None;
    }
    let at = if parts.protocol == icmp_of(&parts) {
        4
    } else {
        0
    };
    word(packet, parts.transport + at).ok()
}

fn icmp_of(parts: &Layout) -> u8 {
    icmp(if parts.is_v4 {
        IpAddr::from([0; 4])
    } else {
        IpAddr::from([0; 16])
    })
}

/// True if a frame is an IP packet from or to an address.
pub(crate) fn is_about(frame: &[u8], address: IpAddr) -> bool {
    let Some(packet) = frame.get(14..).filter(|packet| packet.len() >= 20) else {
        return false;
    };
    let ether_type = if address.is_ipv4() {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    if frame[12..14] != ether_type {
        return false;
    }
    let (source, destination) = if address.is_ipv4() {
        (12..16, 16..20)
    } else {
        (8..24, 24..40)
    };
    let wanted = octets(address);
    [source, destination]
        .into_iter()
        .any(|range| packet.get(range) == Some(&wanted[..]))
}

/// The transport part of a frame, whole.
pub(crate) fn transport_of(frame: &[u8]) -> Result<Vec<u8>> {
    let packet = &frame[14..];
    let parts = layout(packet)?;
    let end = total_length(packet)?;
    Ok(packet[parts.transport..end].to_vec())
}
