//! Packets: valid ones of every kind that the programs distinguish, and damaged ones.

use std::net::IpAddr;

use testkit::packet::Macs;
use testkit::random::Random;

use crate::model::parse::{ETHERNET, ICMP, ICMPV6, SCTP, TCP, UDP};
use crate::model::wire::{fold, octets, put, sum};

/// True at random, once in so many times.
pub(super) fn once_in(random: &mut Random, times: usize) -> bool {
    random.below(times) == 0
}

/// One of several.
pub(super) fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len())]
}

/// A random byte.
fn byte(random: &mut Random) -> u8 {
    random.number().to_le_bytes()[3]
}

/// A random 16-bit number.
fn number16(random: &mut Random) -> u16 {
    u16::from_le_bytes([byte(random), byte(random)])
}

/// Contents of an IP packet.
#[derive(Clone, Debug)]
pub(super) enum Load {
    /// Protocol, source port and destination port. An ICMP query has its identifier as the source
    /// port, an answer as the destination port.
    Ports(u8, u16, u16),
    /// An ICMP error that quotes the beginning of a packet.
    Error(Vec<u8>),
    /// Another protocol, or another ICMP message.
    Other(u8),
}

/// An IP packet to be made.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) load: Load,
}

const FLAGS: [u8; 12] = [
    0x02, 0x02, 0x12, 0x12, 0x10, 0x18, 0x11, 0x04, 0x14, 0x14, 0x03, 0x00,
];

impl Spec {
    pub(super) fn new(source: IpAddr, destination: IpAddr, load: Load) -> Self {
        Self {
            source,
            destination,
            load,
        }
    }

    fn is_v4(&self) -> bool {
        self.source.is_ipv4()
    }

    /// An IP packet, without a frame around it.
    pub(super) fn packet(&self, random: &mut Random) -> Vec<u8> {
        let (mut protocol, mut load) = self.transport(random);
        self.checksum(random, protocol, &mut load);
        let piece = once_in(random, 6).then(|| Piece::any(random));
        if let Some(piece) = &piece
            && piece.offset != 0
            && once_in(random, 2)
        {
            load = payload(random);
        }
        if self.is_v4() {
            return self.ipv4(random, protocol, piece.as_ref(), &load);
        }
        let mut chain = Vec::new();
        for _ in 0..random.below(14).saturating_sub(10) {
            extension(random, &mut protocol, &mut chain);
        }
        if let Some(piece) = &piece {
            let mut header = vec![protocol, 0];
            header.extend((piece.offset << 3 | u16::from(piece.more)).to_be_bytes());
            header.extend(u32::from(piece.id).to_be_bytes());
            chain.splice(0..0, header);
            protocol = 44;
        }
        for _ in 0..random.below(18).saturating_sub(15) {
            extension(random, &mut protocol, &mut chain);
        }
        chain.extend(load);
        self.ipv6(random, protocol, &chain)
    }

    /// The protocol and its header and data, with a checksum of 0.
    fn transport(&self, random: &mut Random) -> (u8, Vec<u8>) {
        let icmp = if self.is_v4() { ICMP } else { ICMPV6 };
        let mut bytes = Vec::new();
        let protocol = match &self.load {
            Load::Ports(protocol @ (ICMP | ICMPV6), source, destination) => {
                let asks = *source != 0 || *destination == 0;
                let id = if asks { source } else { destination };
                let kinds: [u8; 2] = match (self.is_v4(), asks) {
                    (true, true) => [8, 13],
                    (true, false) => [0, 14],
                    (false, true) => [128, 128],
                    (false, false) => [129, 129],
                };
                let kind = if once_in(random, 4) {
                    kinds[1]
                } else {
                    kinds[0]
                };
                bytes.extend([kind, 0, 0, 0]);
                bytes.extend(id.to_be_bytes());
                bytes.extend(number16(random).to_be_bytes());
                *protocol
            }
            Load::Ports(protocol, source, destination) => {
                bytes.extend(source.to_be_bytes());
                bytes.extend(destination.to_be_bytes());
                match *protocol {
                    TCP => bytes.extend(tcp(random)),
                    // The length is filled in with the checksum.
                    UDP => bytes.extend([0; 4]),
                    _ => bytes.extend([0x5a; 8]),
                }
                *protocol
            }
            Load::Error(quote) => {
                let kinds: &[u8] = if self.is_v4() {
                    &[3, 4, 11, 12, 5]
                } else {
                    &[1, 2, 3, 4, 100]
                };
                bytes.extend([pick(random, kinds), byte(random) & 7, 0, 0, 0, 0, 5, 0xdc]);
                bytes.extend(quote);
                return (icmp, bytes);
            }
            Load::Other(protocol) => *protocol,
        };
        bytes.extend(payload(random));
        (protocol, bytes)
    }

    /// Writes the checksum, which is mostly correct.
    fn checksum(&self, random: &mut Random, protocol: u8, load: &mut [u8]) {
        let length = load.len();
        let (at, covers_addresses) = match protocol {
            TCP if length >= 20 => (16, true),
            UDP if length >= 8 => (6, true),
            ICMP if length >= 8 => (2, false),
            ICMPV6 if length >= 8 => (2, true),
            _ => return,
        };
        if protocol == UDP {
            let length = u16::try_from(length).unwrap_or_default();
            put(load, 4, &length.to_be_bytes());
            if once_in(random, 5) {
                return;
            }
        }
        let mut total = sum(load);
        if covers_addresses {
            total += sum(&octets(self.source)) + sum(&octets(self.destination));
            total += u64::from(protocol) + length as u64;
        }
        let checksum = match !fold(total) {
            0 if protocol == UDP => 0xffff,
            checksum => checksum,
        };
        let checksum = match random.below(48) {
            0 => number16(random),
            1 => 0xffff,
            2 => 0,
            _ => checksum,
        };
        put(load, at, &checksum.to_be_bytes());
    }

    fn ipv4(
        &self,
        random: &mut Random,
        protocol: u8,
        piece: Option<&Piece>,
        load: &[u8],
    ) -> Vec<u8> {
        let options = if once_in(random, 12) {
            vec![1; 4 * (1 + random.below(10))]
        } else {
            Vec::new()
        };
        let header = 20 + options.len();
        let length = u16::try_from(header + load.len()).unwrap_or(u16::MAX);
        let words = u8::try_from(header / 4).unwrap_or(5);
        let mut bytes = vec![0x40 | words, byte(random)];
        bytes.extend(length.to_be_bytes());
        bytes.extend(piece.map_or(0x1234, |piece| piece.id).to_be_bytes());
        let fragment = piece.map_or(0x4000, |piece| piece.offset | u16::from(piece.more) << 13);
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([ttl(random), protocol, 0, 0]);
        bytes.extend(octets(self.source));
        bytes.extend(octets(self.destination));
        bytes.extend(options);
        let checksum = match random.below(64) {
            0 => number16(random),
            _ => !fold(sum(&bytes)),
        };
        put(&mut bytes, 10, &checksum.to_be_bytes());
        bytes.extend(load);
        bytes
    }

    fn ipv6(&self, random: &mut Random, protocol: u8, load: &[u8]) -> Vec<u8> {
        let length = u16::try_from(load.len()).unwrap_or(u16::MAX);
        let mut bytes = vec![0x60 | byte(random) >> 4, byte(random), 0, byte(random)];
        bytes.extend(length.to_be_bytes());
        bytes.extend([protocol, ttl(random)]);
        bytes.extend(octets(self.source));
        bytes.extend(octets(self.destination));
        bytes.extend(load);
        bytes
    }
}

fn ttl(random: &mut Random) -> u8 {
    pick(random, &[64, 64, 64, 64, 64, 64, 64, 64, 255, 2, 2, 1, 0])
}

/// A TCP header after its ports.
fn tcp(random: &mut Random) -> Vec<u8> {
    let sequence = if once_in(random, 2) {
        0
    } else {
        0x0102_0304_u32
    };
    let words = pick(random, &[5, 5, 8, 15]);
    let mut bytes = sequence.to_be_bytes().to_vec();
    bytes.extend([
        0,
        0,
        0,
        1,
        words << 4,
        pick(random, &FLAGS),
        4,
        0,
        0,
        0,
        0,
        0,
    ]);
    bytes.extend(vec![1; usize::from(words - 5) * 4]);
    bytes
}

/// Bytes after the headers.
fn payload(random: &mut Random) -> Vec<u8> {
    let length = match random.below(16) {
        0 => 0,
        1 => 1300 + random.below(220),
        2 => random.below(3000),
        _ => random.below(48),
    };
    (0..length).map(|_| byte(random)).collect()
}

/// Puts an IPv6 extension header before the present ones.
fn extension(random: &mut Random, protocol: &mut u8, chain: &mut Vec<u8>) {
    let words = random.below(3);
    let mut header = vec![0; 8 + words * 8];
    header[0] = *protocol;
    header[1] = u8::try_from(words).unwrap_or_default();
    chain.splice(0..0, header);
    *protocol = pick(random, &[0, 43, 60, 60]);
}

/// A fragment of a datagram.
struct Piece {
    offset: u16,
    more: bool,
    id: u16,
}

impl Piece {
    fn any(random: &mut Random) -> Self {
        Self {
            offset: pick(random, &[0, 0, 0, 1, 2, 0x1fff]),
            more: random.below(3) != 0,
            id: pick(random, &[1, 1, 2, 0xfffe]),
        }
    }
}

/// A frame around a packet.
pub(super) fn framed(macs: Macs, packet: &[u8]) -> Vec<u8> {
    let mut frame = macs.bytes();
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    frame.extend(if is_v4 { [0x08, 0] } else { [0x86, 0xdd] });
    frame.extend(packet);
    frame
}

/// Damages a frame, or not.
pub(super) fn mutate(random: &mut Random, frame: &mut Vec<u8>) {
    if random.below(10) < 6 {
        return;
    }
    match random.below(8) {
        0 => frame.truncate(15 + random.below(frame.len() - 14)),
        1 => frame.resize(frame.len() + random.below(64), 0xa5),
        2 => length_field(random, frame),
        3 => {
            let kinds = [
                [8, 0],
                [0x86, 0xdd],
                [8, 6],
                [0x81, 0],
                [0x88, 0xa8],
                [0x88, 0xcc],
            ];
            put(frame, 12, &pick(random, &kinds));
        }
        _ => {
            for _ in 0..=random.below(4) {
                flip(random, frame);
            }
        }
    }
}

/// Changes a byte, mostly of the headers.
fn flip(random: &mut Random, frame: &mut [u8]) {
    let reach = if once_in(random, 4) {
        frame.len()
    } else {
        frame.len().min(110)
    };
    let at = random.below(reach);
    frame[at] = match random.below(4) {
        0 => 0,
        1 => 0xff,
        2 => frame[at] ^ (1 << random.below(8)),
        _ => byte(random),
    };
}

/// Writes a wrong length into the IP header.
fn length_field(random: &mut Random, frame: &mut [u8]) {
    let room = u16::try_from(frame.len() - ETHERNET).unwrap_or(u16::MAX);
    let lie = match random.below(4) {
        0 => 0,
        1 => room.saturating_add(1),
        2 => u16::try_from(random.below(usize::from(room) + 1)).unwrap_or(room),
        _ => number16(random),
    };
    let is_v4 = frame[12..14] == [8, 0];
    let at = ETHERNET + if is_v4 { 2 } else { 4 };
    if frame.len() >= at + 2 {
        put(frame, at, &lie.to_be_bytes());
    }
}

/// Protocols without ports that are handled here, and an unassigned one.
pub(super) const OTHERS: [u8; 8] = [2, 47, 50, 51, 59, 103, 255, 136];
/// Protocols with ports.
pub(super) const WITH_PORTS: [u8; 6] = [TCP, TCP, TCP, UDP, UDP, SCTP];
