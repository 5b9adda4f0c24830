//! What the cache needs of a packet, and whether it is one for the cache.
//!
//! Such a packet goes on within its flow: whole, without options or extension headers, UDP or a TCP
//! segment with ACK that neither opens nor ends its connection. All else is looked at closely.

use datapath_common::abi::Addr;
use datapath_common::headers::{Be16, Ipv4, Ipv6, Tcp, protocol, udp};
use datapath_common::progress::tcp;

use super::entry::Key;
use super::epoch;
use crate::family::{Family, V4, V6};
use crate::packet::{Front, IP_OFFSET, Packet};

/// A packet that goes on within its flow.
pub(super) struct Seen {
    pub(super) key: Key,
    pub(super) protocol: u8,
    /// TTL or hop limit.
    pub(super) ttl: u8,
    /// The largest IP packet that goes on the wire for this one, in bytes.
    pub(super) largest: u32,
    /// Slot of its entry, to be cut to the size of the cache.
    pub(super) hash: u32,
    /// The group of its addresses and ports.
    pub(super) group: u32,
}

/// A family with headers that the cache knows.
pub(super) trait Plain: Family {
    /// Where the transport header begins in the frame.
    const TRANSPORT: usize;

    /// What the IP header says; none for a packet that is none for the cache.
    fn header(front: Front, room: usize) -> Option<Header>;
}

/// What an IP header says.
pub(super) struct Header {
    source: Addr,
    destination: Addr,
    protocol: u8,
    ttl: u8,
    /// Length of what follows the header.
    payload: usize,
}

impl Plain for V4 {
    const TRANSPORT: usize = IP_OFFSET + Ipv4::MIN_LENGTH;

    #[inline(always)]
    fn header(front: Front, room: usize) -> Option<Header> {
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
        Some(Header {
            source: Addr::from_v4_word(front.u32::<{ IP_OFFSET + 12 }>()),
            destination: Addr::from_v4_word(front.u32::<{ IP_OFFSET + 16 }>()),
            protocol: front.u8::<{ IP_OFFSET + 9 }>(),
            ttl: front.u8::<{ IP_OFFSET + 8 }>(),
            payload: length.checked_sub(Ipv4::MIN_LENGTH)?,
        })
    }
}

impl Plain for V6 {
    const TRANSPORT: usize = IP_OFFSET + Ipv6::LENGTH;

    #[inline(always)]
    fn header(front: Front, room: usize) -> Option<Header> {
        let payload = usize::from(Be16::from_lane(front.u16::<{ IP_OFFSET + 4 }>()).get());
        if front.u8::<IP_OFFSET>() >> 4 != 6 || payload + Ipv6::LENGTH > room {
            return None;
        }
        Some(Header {
            source: Addr::from_v6_words([
                front.u32::<{ IP_OFFSET + 8 }>(),
                front.u32::<{ IP_OFFSET + 12 }>(),
                front.u32::<{ IP_OFFSET + 16 }>(),
                front.u32::<{ IP_OFFSET + 20 }>(),
            ]),
            destination: Addr::from_v6_words([
                front.u32::<{ IP_OFFSET + 24 }>(),
                front.u32::<{ IP_OFFSET + 28 }>(),
                front.u32::<{ IP_OFFSET + 32 }>(),
                front.u32::<{ IP_OFFSET + 36 }>(),
            ]),
            protocol: front.u8::<{ IP_OFFSET + 6 }>(),
            ttl: front.u8::<{ IP_OFFSET + 7 }>(),
            payload,
        })
    }
}

/// The ether type of a frame that is long enough for the cache.
#[inline(always)]
pub(super) fn ether_type_of(packet: &Packet) -> Option<u16> {
    let front = packet.front::<{ <V4 as Plain>::TRANSPORT + udp::LENGTH }>()?;
    Some(Be16::from_lane(front.u16::<12>()).get())
}

/// What the cache needs of a packet; none for one that is none for it.
#[inline(always)]
pub(super) fn look<F: Plain>(packet: &Packet) -> Option<Seen> {
    let room = packet.ip_room();
    let (front, ports) = if F::IS_V4 {
        let front = packet.front::<{ <V4 as Plain>::TRANSPORT + udp::LENGTH }>()?;
        (front, front.u32::<{ <V4 as Plain>::TRANSPORT }>())
    } else {
        let front = packet.front::<{ <V6 as Plain>::TRANSPORT + udp::LENGTH }>()?;
        (front, front.u32::<{ <V6 as Plain>::TRANSPORT }>())
    };
    let header = F::header(front, room)?;
    let transport = match header.protocol {
        protocol::TCP if header.payload >= Tcp::MIN_LENGTH => goes_on::<F>(packet)?,
        protocol::UDP if header.payload >= udp::LENGTH && has_sum::<F>(front) => udp::LENGTH,
        _ => return None,
    };
    let segment = packet.gso_size();
    let largest = if segment == 0 {
        room
    } else {
        F::TRANSPORT - IP_OFFSET + transport + segment
    };
    let (source, destination) = (header.source.fold(), header.destination.fold());
    Some(Seen {
        key: Key {
            source: pair(header.source),
            destination: pair(header.destination),
            place: Key::place(packet.ifindex(), ports),
        },
        protocol: header.protocol,
        ttl: header.ttl,
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a sum of a few 16-bit lengths"
        )]
        largest: largest as u32,
        hash: mix(source, destination, ports),
        group: epoch::group(source ^ destination, halves(ports)),
    })
}

/// Length of the header of a TCP segment that neither opens nor ends its connection.
#[inline(always)]
fn goes_on<F: Plain>(packet: &Packet) -> Option<usize> {
    let (flags, offset) = if F::IS_V4 {
        let front = packet.front::<{ <V4 as Plain>::TRANSPORT + Tcp::MIN_LENGTH }>()?;
        (
            front.u8::<{ <V4 as Plain>::TRANSPORT + 13 }>(),
            front.u8::<{ <V4 as Plain>::TRANSPORT + 12 }>(),
        )
    } else {
        let front = packet.front::<{ <V6 as Plain>::TRANSPORT + Tcp::MIN_LENGTH }>()?;
        (
            front.u8::<{ <V6 as Plain>::TRANSPORT + 13 }>(),
            front.u8::<{ <V6 as Plain>::TRANSPORT + 12 }>(),
        )
    };
    let decisive = flags & (tcp::SYN | tcp::FIN | tcp::RST | tcp::ACK);
    (decisive == tcp::ACK).then_some(usize::from(offset >> 4) * 4)
}

/// Whether a UDP datagram has a checksum. Without one, the sum that the kernel may have of the packet
/// has to follow what is written.
#[inline(always)]
fn has_sum<F: Plain>(front: Front) -> bool {
    let sum = if F::IS_V4 {
        front.u16::<{ <V4 as Plain>::TRANSPORT + udp::CHECKSUM }>()
    } else {
        front.u16::<{ <V6 as Plain>::TRANSPORT + udp::CHECKSUM }>()
    };
    sum != 0
}

/// The slot of a direction of a flow.
#[inline(always)]
fn mix(source: u32, destination: u32, ports: u32) -> u32 {
    /// As in [`epoch::group`], for 64 bits.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let words = u64::from(source) << 32 | u64::from(destination);
    let mixed = (words ^ u64::from(ports).wrapping_mul(MULTIPLIER)).wrapping_mul(MULTIPLIER);
    (mixed >> 32) as u32
}

/// Both ports in one.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the two halves of the word"
)]
fn halves(ports: u32) -> u16 {
    (ports >> 16) as u16 ^ ports as u16
}

#[inline(always)]
pub(super) fn pair(address: Addr) -> [u64; 2] {
    let [a, b, c, d] = address.words();
    [
        u64::from(a) << 32 | u64::from(b),
        u64::from(c) << 32 | u64::from(d),
    ]
}

/// What [`pair`] was given.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the two halves of the word"
)]
pub(super) fn address([high, low]: [u64; 2]) -> Addr {
    Addr::from_words([
        (high >> 32) as u32,
        high as u32,
        (low >> 32) as u32,
        low as u32,
    ])
}
