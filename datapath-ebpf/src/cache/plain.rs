//! The headers that the cache supports, of either family: an IP header without options or
//! extensions, and a TCP or UDP header.

use core::hint;

use datapath_common::abi::{Addr, cache_digest, group};
use datapath_common::checksum;
use datapath_common::headers::{Be16, Ipv4, Ipv6, Tcp, lanes, protocol, udp};
use datapath_common::progress::tcp;

use crate::packet::family::{Family, V4, V6};
use crate::packet::{IP_OFFSET, LinearHead, Packet};
use crate::scratch::{AddrField, FAMILY_V4, FAMILY_V6, Key};

/// A family with headers that the cache knows.
pub(super) trait FastHeader: Family {
    /// Where the transport header begins in the frame.
    const TRANSPORT: usize;

    /// Bits of an entry's kind.
    const FAMILY: u32;

    /// By how much the sum of the header's words grows when its TTL or hop limit is lowered by one.
    const HOP_GROWTH: u32;

    /// Fields of the headers; none for a packet that does not use the cache.
    fn header(packet: &Packet, front: LinearHead, room: usize) -> Option<Header>;

    /// Source and destination in one word, which is equal for the other direction.
    fn digest(addresses: &[u64; 4]) -> u64;

    /// True if addresses are the same.
    fn is_same(one: &[u64; 4], other: &[u64; 4]) -> bool;

    /// Source and destination.
    fn ends(words: &[u64; 4]) -> (Addr, Addr);

    /// Lowers the TTL or hop limit; `growth` is that of all that changes in the header.
    fn forward(packet: &mut Packet, seen: &FastPacket, growth: u16);

    /// Replaces an address and the port beside it; no checksum.
    fn replace(front: LinearHead, side: AddrField, address: [u32; 4], port: u16);
}

/// Fields of the headers of a packet.
pub(super) struct Header {
    pub(super) front: LinearHead,
    pub(super) addresses: [u64; 4],
    pub(super) ports: u32,
    pub(super) protocol: u8,
    pub(super) ttl: u8,
    pub(super) transport: TransportHeader,
}

/// Fields of a transport header.
#[derive(Clone, Copy)]
pub(super) struct TransportHeader {
    pub(super) length: usize,
    /// 0 for UDP.
    pub(super) tcp_flags: u8,
}

/// A packet that the cache knows.
pub(super) struct FastPacket {
    pub(super) front: LinearHead,
    pub(super) key: Key,
    /// The protocol, and bits of [`FAMILY`](crate::scratch::FAMILY).
    pub(super) kind: u64,
    /// TTL or hop limit.
    pub(super) ttl: u8,
    /// 0 for UDP.
    pub(super) tcp_flags: u8,
    /// The largest IP packet that goes on the wire for this one, in bytes.
    pub(super) largest: usize,
    /// The slot of its entry.
    pub(super) slot: u32,
}

impl FastPacket {
    /// The group of its addresses and ports. Must be called only if needed: otherwise it would be
    /// computed for every packet.
    #[inline(always)]
    pub(super) fn group(&self) -> u32 {
        let [a, b, c, d] = self.key.addresses;
        let [first, second] = words(a ^ b ^ c ^ d);
        let [source_port, destination_port] = lanes(self.key.ports());
        group(first ^ second, source_port ^ destination_port)
    }
}

/// The ports and what else the cache needs of a transport header at an offset.
macro_rules! transport {
    ($packet:expr, $front:expr, $protocol:expr, $payload:expr, $at:expr) => {
        match $protocol {
            protocol::TCP => {
                if $payload < Tcp::MIN_LENGTH {
                    hint::cold_path();
                    return None;
                }
                let front = $packet.front::<{ $at + Tcp::MIN_LENGTH }>()?;
                segment(front.u8::<{ $at + 13 }>(), front.u8::<{ $at + 12 }>())?
            }
            // Without a checksum in the packet, the kernel's sum of the packet has to be updated
            // with each write.
            protocol::UDP
                if $payload >= udp::LENGTH && $front.u16::<{ $at + udp::CHECKSUM }>() != 0 =>
            {
                TransportHeader {
                    length: udp::LENGTH,
                    tcp_flags: 0,
                }
            }
            _ => return None,
        }
    };
}

/// Offset of the transport header after an IP header without options.
pub(super) const V4_TRANSPORT: usize = IP_OFFSET + Ipv4::MIN_LENGTH;
const V6_TRANSPORT: usize = IP_OFFSET + Ipv6::LENGTH;

impl FastHeader for V4 {
    const TRANSPORT: usize = V4_TRANSPORT;
    const FAMILY: u32 = FAMILY_V4;
    /// The TTL is the higher byte of its word.
    const HOP_GROWTH: u32 = checksum::growth_of_lane(0x0100_u16.to_be(), 0);

    #[inline(always)]
    fn header(packet: &Packet, front: LinearHead, room: usize) -> Option<Header> {
        /// Version 4, and five words.
        const PLAIN: u8 = 0x45;
        /// All of the field but the bit that forbids fragments.
        const FRAGMENT: u16 = 0xbfff_u16.to_be();
        let length = usize::from(Be16::from_lane(front.u16::<{ IP_OFFSET + 2 }>()).get());
        let is_plain = front.u8::<IP_OFFSET>() == PLAIN
            && front.u16::<{ IP_OFFSET + 6 }>() & FRAGMENT == 0
            && length <= room;
        if !is_plain {
            return None;
        }
        let payload = length.checked_sub(Ipv4::MIN_LENGTH)?;
        let protocol = front.u8::<{ IP_OFFSET + 9 }>();
        Some(Header {
            front,
            addresses: [0, 0, 0, front.u64::<{ IP_OFFSET + 12 }>()],
            ports: front.u32::<V4_TRANSPORT>(),
            protocol,
            ttl: front.u8::<{ IP_OFFSET + 8 }>(),
            transport: transport!(packet, front, protocol, payload, V4_TRANSPORT),
        })
    }

    #[inline(always)]
    fn digest([.., both]: &[u64; 4]) -> u64 {
        *both
    }

    #[inline(always)]
    fn is_same([.., one]: &[u64; 4], [.., other]: &[u64; 4]) -> bool {
        one == other
    }

    #[inline(always)]
    fn ends([.., both]: &[u64; 4]) -> (Addr, Addr) {
        let [source, destination] = words(*both);
        (Addr::from_v4_word(source), Addr::from_v4_word(destination))
    }

    #[inline(always)]
    fn forward(_packet: &mut Packet, seen: &FastPacket, growth: u16) {
        let front = seen.front;
        let sum = checksum::update_by_lane(front.u16::<{ IP_OFFSET + 10 }>(), growth);
        front.set_u8::<{ IP_OFFSET + 8 }>(seen.ttl.wrapping_sub(1));
        front.set_u16::<{ IP_OFFSET + 10 }>(sum);
    }

    #[inline(always)]
    fn replace(front: LinearHead, side: AddrField, [_, _, _, address]: [u32; 4], port: u16) {
        match side {
            AddrField::Source => {
                front.set_u32::<{ IP_OFFSET + 12 }>(address);
                front.set_u16::<V4_TRANSPORT>(port);
            }
            AddrField::Destination => {
                front.set_u32::<{ IP_OFFSET + 16 }>(address);
                front.set_u16::<{ V4_TRANSPORT + 2 }>(port);
            }
        }
    }
}

impl FastHeader for V6 {
    const TRANSPORT: usize = V6_TRANSPORT;
    const FAMILY: u32 = FAMILY_V6;
    /// The hop limit is the lower byte of its word.
    const HOP_GROWTH: u32 = checksum::growth_of_lane(1_u16.to_be(), 0);

    #[inline(always)]
    fn header(packet: &Packet, _front: LinearHead, room: usize) -> Option<Header> {
        let front = packet.front::<{ V6_TRANSPORT + udp::LENGTH }>()?;
        let payload = usize::from(Be16::from_lane(front.u16::<{ IP_OFFSET + 4 }>()).get());
        if front.u8::<IP_OFFSET>() >> 4 != 6 || payload + Ipv6::LENGTH > room {
            return None;
        }
        let protocol = front.u8::<{ IP_OFFSET + 6 }>();
        Some(Header {
            front,
            addresses: [
                front.u64::<{ IP_OFFSET + 8 }>(),
                front.u64::<{ IP_OFFSET + 16 }>(),
                front.u64::<{ IP_OFFSET + 24 }>(),
                front.u64::<{ IP_OFFSET + 32 }>(),
            ],
            ports: front.u32::<V6_TRANSPORT>(),
            protocol,
            ttl: front.u8::<{ IP_OFFSET + 7 }>(),
            transport: transport!(packet, front, protocol, payload, V6_TRANSPORT),
        })
    }

    #[inline(always)]
    fn digest(words: &[u64; 4]) -> u64 {
        cache_digest(words)
    }

    #[inline(always)]
    fn is_same(one: &[u64; 4], other: &[u64; 4]) -> bool {
        // A comparison of arrays would become a call.
        one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3]
    }

    #[inline(always)]
    fn ends(&[a, b, c, d]: &[u64; 4]) -> (Addr, Addr) {
        (Addr::from_v6_halves([a, b]), Addr::from_v6_halves([c, d]))
    }

    #[inline(always)]
    fn forward(packet: &mut Packet, seen: &FastPacket, growth: u16) {
        seen.front
            .set_u8::<{ IP_OFFSET + 7 }>(seen.ttl.wrapping_sub(1));
        // No checksum in the header makes up for it (see `Family::set_address`).
        packet.update_sum(growth.into());
    }

    #[inline(always)]
    fn replace(front: LinearHead, side: AddrField, address: [u32; 4], port: u16) {
        let [first, second, third, fourth] = address;
        match side {
            AddrField::Source => {
                front.set_u32::<{ IP_OFFSET + 8 }>(first);
                front.set_u32::<{ IP_OFFSET + 12 }>(second);
                front.set_u32::<{ IP_OFFSET + 16 }>(third);
                front.set_u32::<{ IP_OFFSET + 20 }>(fourth);
                front.set_u16::<V6_TRANSPORT>(port);
            }
            AddrField::Destination => {
                front.set_u32::<{ IP_OFFSET + 24 }>(first);
                front.set_u32::<{ IP_OFFSET + 28 }>(second);
                front.set_u32::<{ IP_OFFSET + 32 }>(third);
                front.set_u32::<{ IP_OFFSET + 36 }>(fourth);
                front.set_u16::<{ V6_TRANSPORT + 2 }>(port);
            }
        }
    }
}

/// The header of a TCP segment, if it is one of [`KNOWN`].
#[inline(always)]
fn segment(tcp_flags: u8, offset: u8) -> Option<TransportHeader> {
    let is_known = KNOWN >> (tcp_flags & DECISIVE) & 1 != 0;
    is_known.then_some(TransportHeader {
        length: usize::from(offset >> 4) * 4,
        tcp_flags,
    })
}

/// The lowest flags, which index [`KNOWN`]: the relevant ones, and PSH among them, which makes no
/// difference.
const DECISIVE: u8 = 0x1f;

/// A bit for each set of flags whose segments the cache supports: those of an open connection, and
/// those that open it or close it in order.
const KNOWN: u32 = {
    let (mut known, mut flags) = (0, 0);
    while flags <= DECISIVE {
        let decisive = flags & (tcp::SYN | tcp::FIN | tcp::RST | tcp::ACK);
        let (goes_on, ends) = (tcp::ACK, tcp::ACK | tcp::FIN);
        let (opens, accepts) = (tcp::SYN, tcp::SYN | tcp::ACK);
        if decisive == goes_on || decisive == ends || decisive == opens || decisive == accepts {
            known |= 1 << flags;
        }
        flags += 1;
    }
    known
};

/// The two words of a double one, as they lie in a packet.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the two halves of the word"
)]
pub(super) fn words(double: u64) -> [u32; 2] {
    let (low, high) = (double as u32, (double >> 32) as u32);
    if cfg!(target_endian = "little") {
        [low, high]
    } else {
        [high, low]
    }
}
