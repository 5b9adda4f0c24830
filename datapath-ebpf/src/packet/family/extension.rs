//! IPv6 extension headers (RFC 8200 section 4).

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::headers::{Ipv6Fragment, protocol, word};

use crate::packet::Packet;
use crate::scratch::FragmentKind;

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
    /// Part of the datagram that the packet is.
    pub(super) fragment: FragmentKind,
    /// Identification of the datagram, as it lies in the packet.
    pub(super) fragment_id: u32,
}

impl Chain {
    /// No extension header.
    #[inline(always)]
    fn none(protocol: u8, transport: usize) -> Self {
        Self {
            protocol,
            transport,
            fragment: FragmentKind::Whole,
            fragment_id: 0,
        }
    }

    /// Chain that [`follow_chain`] returned.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is taken")]
    fn from_register(register: u64) -> Self {
        let [_, _, _, _, t0, t1, protocol, _] = register.to_le_bytes();
        Self {
            protocol,
            transport: usize::from(u16::from_le_bytes([t0, t1])),
            fragment: match register & (FIRST | LATER) {
                FIRST => FragmentKind::First,
                LATER => FragmentKind::Later,
                _ => FragmentKind::Whole,
            },
            fragment_id: register as u32,
        }
    }
}

// A chain as a register: from the lowest bit on, the datagram's identification, an offset of less
// than 2^16, the protocol, and one of these, or none for a whole packet.
const TRANSPORT: u32 = 32;
const PROTOCOL: u32 = 48;
const FIRST: u64 = 1 << 56;
const LATER: u64 = 2 << 56;

/// Follows extension headers from the protocol of the first one, which begins at `offset`, in a
/// packet that ends at `end`.
#[inline(always)]
pub(super) fn follow(packet: &Packet, protocol: u8, offset: usize, end: usize) -> Chain {
    if !is_known(protocol) {
        return Chain::none(protocol, offset);
    }
    // No packet is so long that this would cut anything off.
    #[expect(clippy::cast_possible_truncation, reason = "see above")]
    let (offset, end) = (offset as u32, end as u32);
    Chain::from_register(follow_chain(packet.skb(), protocol.into(), offset, end))
}

/// True if this is an extension header that is followed.
#[inline(always)]
fn is_known(protocol: u8) -> bool {
    matches!(
        protocol,
        protocol::FRAGMENT
            | protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::DESTINATION_OPTIONS
    )
}

/// The chain as a register: few packets have one, so it is a global function.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "`follow` gives a byte")]
extern "C" fn follow_chain(skb: *mut __sk_buff, protocol: u32, offset: u32, end: u32) -> u64 {
    let packet = Packet::new(TcContext::new(skb));
    let (mut protocol, mut offset) = (protocol as u8, offset);
    let mut datagram = 0;
    for _ in 0..MOST {
        // No extension header is shorter than this one.
        if !is_known(protocol) || offset + Ipv6Fragment::LENGTH as u32 > end {
            break;
        }
        let Ok(header) = packet.copy::<Ipv6Fragment>(offset as usize) else {
            break;
        };
        if protocol == protocol::FRAGMENT {
            offset += Ipv6Fragment::LENGTH as u32;
            datagram = word(header.identification).into();
            if header.is_later_fragment() {
                datagram |= LATER;
            } else if header.has_more_fragments() {
                datagram |= FIRST;
            }
        } else {
            offset += 8 + u32::from(header.length) * 8;
        }
        protocol = header.next_header;
        if datagram & LATER != 0 {
            break;
        }
    }
    datagram | u64::from(protocol) << PROTOCOL | u64::from(offset & 0xffff) << TRANSPORT
}
