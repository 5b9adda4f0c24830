//! Removes flows that user space found idle.
//!
//! Attached nowhere: user space runs it (`BPF_PROG_TEST_RUN`) with a request for packet data, as
//! `datapath_common::abi` lays it out.

use datapath_common::abi::{REAP_BATCH, ReapFlow, ReapHeader, ReapKind, ReapNote};
use datapath_common::counter::NatStat;

use crate::family::{V4, V6};
use crate::nat::retire::retire;
use crate::nat::{inbound, stack, stats};
use crate::packet::Packet;

/// Removes what the request names, and gives how many that were.
#[inline(always)]
pub(crate) fn run(packet: &Packet) -> i32 {
    let Ok(header) = packet.copy::<ReapHeader>(0) else {
        return 0;
    };
    let mut removed = 0;
    for index in 0..REAP_BATCH {
        if index >= usize::from(header.count) {
            break;
        }
        let is_gone = if header.kind == ReapKind::Flows as u8 {
            flow(packet, index)
        } else {
            noted(packet, index, header.kind == ReapKind::Stack as u8)
        };
        removed += i32::from(is_gone);
    }
    removed
}

#[inline(always)]
fn flow(packet: &Packet, index: usize) -> bool {
    let offset = size_of::<ReapHeader>() + index * size_of::<ReapFlow>();
    let Ok(item) = packet.copy::<ReapFlow>(offset) else {
        return false;
    };
    let is_v4 = item.key.remote.is_v4();
    let is_gone = if is_v4 {
        retire::<V4>(&item.key, item.last_seen)
    } else {
        retire::<V6>(&item.key, item.last_seen)
    };
    if is_gone {
        stats::count_of(NatStat::Removed, is_v4);
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
