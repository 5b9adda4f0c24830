//! Fields of a packet that the cache needs, and the test for packets that use the cache.
//!
//! Such a packet is whole and has no options or extension headers. It is UDP, or a TCP segment that
//! does not reset its connection. All other packets take the slow path.

use datapath_common::abi::cache_hash;
use datapath_common::headers::{Be16, udp};

use super::plain::{FastHeader, FastPacket, V4_TRANSPORT};
use super::slot_of;
use crate::packet::{IP_OFFSET, LinearHead, Packet};
use crate::scratch::Key;

/// The front of a frame that is long enough for the cache, and its ether type.
#[inline(always)]
pub(super) fn begin(packet: &Packet) -> Option<(LinearHead, u16)> {
    let front = packet.front::<{ V4_TRANSPORT + udp::LENGTH }>()?;
    Some((front, Be16::from_lane(front.u16::<12>()).get()))
}

/// Fields of a packet that the cache needs; none for a packet that does not use the cache.
#[inline(always)]
pub(super) fn look<F: FastHeader>(packet: &Packet, front: LinearHead) -> Option<FastPacket> {
    // The front alone is longer than an Ethernet header.
    let room = (packet.length() as usize).wrapping_sub(IP_OFFSET);
    let header = F::header(packet, front, room)?;
    let segment = packet.gso_size();
    let largest = if segment == 0 {
        room
    } else {
        F::TRANSPORT - IP_OFFSET + header.transport.length + segment
    };
    Some(FastPacket {
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
