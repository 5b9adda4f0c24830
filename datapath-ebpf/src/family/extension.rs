//! IPv6 extension headers (RFC 8200 section 4).

use datapath_common::fault::Fault;
use datapath_common::headers::{Ipv6Fragment, protocol, word};

use super::Piece;
use crate::fault;
use crate::packet::Packet;

/// Most extension headers that are followed: each that is known here once, and destination options
/// twice (RFC 8200 section 4.1).
const MOST: usize = 5;

/// Where extension headers lead.
pub(super) struct Chain {
    /// Protocol of what they lead to. That of an extension header where they cannot be followed:
    /// because they are cut off or too many, or of a kind unknown here.
    pub(super) protocol: u8,
    /// Where that begins in the frame.
    pub(super) transport: usize,
    /// What the packet is to its datagram.
    pub(super) fragment: Piece,
    /// Identification of the datagram, as it lies in the packet.
    pub(super) fragment_id: u32,
}

/// Follows extension headers from the protocol of the first one, which begins at `offset`, in a
/// packet that ends at `end`.
#[inline(always)]
pub(super) fn follow(packet: &Packet, protocol: u8, offset: usize, end: usize) -> Chain {
    let mut chain = Chain {
        protocol,
        transport: offset,
        fragment: Piece::Whole,
        fragment_id: 0,
    };
    for _ in 0..MOST {
        let is_fragment = chain.protocol == protocol::FRAGMENT;
        let is_known = is_fragment
            || matches!(
                chain.protocol,
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS
            );
        // No extension header is shorter than this one.
        if !is_known || chain.transport + Ipv6Fragment::LENGTH > end {
            break;
        }
        let Ok(header) = packet.copy::<Ipv6Fragment>(chain.transport) else {
            break;
        };
        chain.protocol = header.next_header;
        if is_fragment {
            chain.transport += Ipv6Fragment::LENGTH;
            chain.fragment_id = word(header.identification);
            chain.fragment = if header.is_later_fragment() {
                Piece::Later
            } else if header.has_more_fragments() {
                Piece::First
            } else {
                Piece::Whole
            };
            if chain.fragment == Piece::Later {
                break;
            }
        } else {
            let length = if fault::has(Fault::ExtensionLength) {
                0
            } else {
                header.length
            };
            chain.transport += 8 + usize::from(length) * 8;
        }
    }
    chain
}
