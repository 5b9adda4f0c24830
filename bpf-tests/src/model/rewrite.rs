//! Translation of a frame's bytes.

use std::net::IpAddr;

use super::parse::{FragmentKind, ICMP, Ip, UDP};
use super::transport::{checksum_at, port_at};
use super::wire::{adjusted, number16, octets, put, replace};

/// Side of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The sender's.
    Source,
    /// The receiver's.
    Destination,
}

/// The new end of a packet.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Its side.
    pub side: Side,
    /// Its address.
    pub address: IpAddr,
    /// Its port, if the packet has ports.
    pub port: u16,
}

/// Offset of the address of a side.
fn address_at(ip: &Ip, side: Side) -> usize {
    match side {
        Side::Source => ip.source_at(),
        Side::Destination => ip.destination_at(),
    }
}

/// Lowers the TTL or hop limit by one.
pub fn lower_ttl(frame: &mut [u8], ip: &Ip) {
    let ttl = ip.ttl.wrapping_sub(1);
    if ip.version == 4 {
        let at = ip.start + 8;
        // The checksum covers words.
        let word = [ttl, frame[at + 1]];
        replace(frame, at, &word, &[ip.start + 10]);
    } else {
        frame[ip.start + 7] = ttl;
    }
}

/// Applies a change to the checksum of a transport header, if it is there.
fn carry(frame: &mut [u8], ip: &Ip, old: &[u8], new: &[u8]) {
    let Some(at) = checksum_at(ip).filter(|at| at + 2 <= ip.end) else {
        return;
    };
    let Some(checksum) = number16(frame, at) else {
        return;
    };
    // RFC 768: 0 means that there is no checksum, and a sum of 0 is sent as all ones.
    if ip.protocol == UDP && checksum == 0 {
        return;
    }
    let checksum = match adjusted(checksum, old, new) {
        0 if ip.protocol == UDP => 0xffff,
        other => other,
    };
    put(frame, at, &checksum.to_be_bytes());
}

/// True if the transport checksum covers the addresses.
fn covers_addresses(ip: &Ip) -> bool {
    !(ip.version == 4 && ip.protocol == ICMP)
}

/// Replaces the address of an end, and its port if that differs and the packet has it.
pub fn translate(frame: &mut [u8], ip: &Ip, end: End) {
    replace_address(frame, ip, end.side, end.address);
    if ip.piece == FragmentKind::Later {
        return;
    }
    replace_port(frame, ip, end.side, end.port);
}

/// Replaces the address of a side, and updates its checksums.
pub fn replace_address(frame: &mut [u8], ip: &Ip, side: Side, address: IpAddr) {
    let at = address_at(ip, side);
    let new = octets(address);
    let old = frame[at..at + new.len()].to_vec();
    if old == new {
        return;
    }
    let header_checksum: &[usize] = if ip.version == 4 {
        &[ip.start + 10]
    } else {
        &[]
    };
    replace(frame, at, &new, header_checksum);
    if ip.piece != FragmentKind::Later && covers_addresses(ip) {
        carry(frame, ip, &old, &new);
    }
}

/// Replaces the port of a side.
fn replace_port(frame: &mut [u8], ip: &Ip, side: Side, port: u16) {
    let Some(at) = port_at(frame, ip, side == Side::Source) else {
        return;
    };
    let Some(old) = number16(frame, at).filter(|old| *old != port) else {
        return;
    };
    let new = port.to_be_bytes();
    carry(frame, ip, &old.to_be_bytes(), &new);
    put(frame, at, &new);
}

/// Rewrites the packet that an ICMP error quotes.
pub fn translate_quoted(frame: &mut [u8], ip: &Ip, quoted: &Ip, end: End) {
    let before = frame[ip.transport..].to_vec();
    translate(frame, quoted, end);
    let after = frame[ip.transport..].to_vec();
    // The checksum of the error covers all of the quote.
    carry(frame, ip, &before[4..], &after[4..]);
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};

    use super::super::parse;
    use super::*;

    /// Expects that a translated packet equals one built from the new source address and port.
    fn packets(ip: impl Fn(u8) -> PacketBuilderStep<IpHeaders>, version: u8, to: IpAddr) {
        let built = |source: u8, port: u16| {
            let mut bytes = Vec::new();
            ip(source)
                .tcp(port, 80, 1, 1024)
                .write(&mut bytes, b"payload")
                .unwrap();
            bytes
        };
        let mut frame = built(1, 1000);
        let header = parse::ip(&frame, version, false).unwrap();
        let end = End {
            side: Side::Source,
            address: to,
            port: 50_000,
        };
        translate(&mut frame, &header, end);
        assert_eq!(frame, built(2, 50_000));
    }

    #[test]
    fn a_translated_packet_is_the_one_that_would_have_been_built() {
        packets(
            |source| {
                PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(
                    [10, 0, 0, source],
                    [198, 51, 100, 7],
                    64,
                )
            },
            4,
            Ipv4Addr::new(10, 0, 0, 2).into(),
        );
        let v6 = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        packets(
            |source| {
                PacketBuilder::ethernet2([1; 6], [2; 6]).ipv6(
                    v6(u16::from(source)).octets(),
                    v6(9).octets(),
                    64,
                )
            },
            6,
            v6(2).into(),
        );
    }
}
