//! Fields of a packet that the cache needs, and the test for packets that use the cache.
//!
//! Such a packet is whole and has no options or extension headers. It is UDP, or a TCP segment that
//! does not reset its connection. All other packets take the slow path.

use datapath_common::abi::{cache_hash, group};
use datapath_common::headers::{Be16, lanes, udp};

use super::entry::Key;
use super::plain::{Plain, V4_TRANSPORT, words};
use super::slot_of;
use crate::packet::{Front, IP_OFFSET, Packet};

/// A packet that the cache knows.
pub(super) struct Seen {
    pub(super) front: Front,
    pub(super) key: Key,
    /// The protocol, and bits of [`FAMILY`](super::entry::FAMILY).
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

impl Seen {
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

/// The front of a frame that is long enough for the cache, and its ether type.
#[inline(always)]
pub(super) fn begin(packet: &Packet) -> Option<(Front, u16)> {
    let front = packet.front::<{ V4_TRANSPORT + udp::LENGTH }>()?;
    Some((front, Be16::from_lane(front.u16::<12>()).get()))
}

/// Fields of a packet that the cache needs; none for a packet that does not use the cache.
#[inline(always)]
pub(super) fn look<F: Plain>(packet: &Packet, front: Front) -> Option<Seen> {
    // The front alone is longer than an Ethernet header.
    let room = (packet.length() as usize).wrapping_sub(IP_OFFSET);
    let header = F::header(packet, front, room)?;
    let segment = packet.gso_size();
    let largest = if segment == 0 {
        room
    } else {
        F::TRANSPORT - IP_OFFSET + header.transport.length + segment
    };
    Some(Seen {
        front: header.front,
        key: Key {
            addresses: header.addresses,
            place: Key::place(packet.ifindex(), header.ports),
        },
        kind: u64::from(header.protocol) | u64::from(F::FAMILY),
        ttl: header.ttl,
        tcp_flags: header.transport.tcp_flags,
        largest,
        slot: slot_of(cache_hash(F::digest(&header.addresses), header.ports)),
    })
}
