//! Removes flows that user space found idle.
//!
//! Attached nowhere: user space runs it (`BPF_PROG_TEST_RUN`) with a request for packet data, as
//! `datapath_common::abi` lays it out.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{REAP_BATCH, ReapFlow, ReapHeader, ReapKind, ReapNote};
use datapath_common::counter::NatStat;

use crate::nat::flow::retire::retire;
use crate::nat::suspect::acquit;
use crate::nat::tables::stats;
use crate::nat::tracked::{inbound, stack};
use crate::packet::Packet;

/// [`REAP_BATCH`], as the index is passed on.
#[expect(clippy::cast_possible_truncation, reason = "it is below 256")]
const MOST_ITEMS: u32 = REAP_BATCH as u32;
const _: () = assert!(REAP_BATCH <= u8::MAX as usize);

/// Removes what the request names, and gives how many that were.
#[inline(always)]
pub(crate) fn run(packet: &Packet) -> i32 {
    let Ok(header) = packet.copy::<ReapHeader>(0) else {
        return 0;
    };
    let mut removed = 0;
    for index in 0..MOST_ITEMS {
        if index >= u32::from(header.count) {
            break;
        }
        removed += reap_item(packet.skb(), index, header.kind.into());
    }
    removed.cast_signed()
}

/// Removes one item of a request; 1 if it did.
///
/// A global function, which the verifier checks once, and not once for every item.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn reap_item(skb: *mut __sk_buff, index: u32, kind: u32) -> u32 {
    let packet = Packet::new(TcContext::new(skb));
    // It is below already, but the verifier does not know that.
    let index = index as usize % REAP_BATCH;
    u32::from(if kind == ReapKind::Flows as u32 {
        flow(&packet, index)
    } else {
        noted(&packet, index, kind == ReapKind::Stack as u32)
    })
}

#[inline(always)]
fn flow(packet: &Packet, index: usize) -> bool {
    let offset = size_of::<ReapHeader>() + index * size_of::<ReapFlow>();
    let Ok(item) = packet.copy::<ReapFlow>(offset) else {
        return false;
    };
    if item.last_seen != ReapFlow::ALWAYS && acquit(packet.skb(), &item.key) {
        return false;
    }
    let is_gone = retire(&item.key, item.last_seen);
    if is_gone {
        stats::count(NatStat::Removed, item.key.remote.is_v4());
    }
    is_gone
}

#[inline(always)]
fn noted(packet: &Packet, index: usize, is_stack: bool) -> bool {
    let offset = size_of::<ReapHeader>() + index * size_of::<ReapNote>();
    let Ok(item) = packet.copy::<ReapNote>(offset) else {
        return false;
    };
    if is_stack {
        stack::retire(&item.key, item.last_seen)
    } else {
        inbound::retire(&item.key, item.last_seen)
    }
}
