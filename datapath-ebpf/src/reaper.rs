//! Removes flows that user space found idle.
//!
//! Attached nowhere: user space runs it (`BPF_PROG_TEST_RUN`) with a request for packet data, as
//! `datapath_common::abi` lays it out.

use datapath_common::abi::{REAP_BATCH, ReapFlow, ReapHeader, ReapInbound, ReapKind};
use datapath_common::counter::NatStat;

use crate::family::{V4, V6};
use crate::nat::retire::retire;
use crate::nat::{inbound, stats};
use crate::packet::Packet;

/// Removes what the request names, and gives how many that were.
#[inline(always)]
pub(crate) fn run(packet: &Packet) -> i32 {
    let Ok(header) = packet.copy::<ReapHeader>(0) else {
        return 0;
    };
    let is_inbound = header.kind == ReapKind::Inbound as u8;
    let mut removed = 0;
    for index in 0..REAP_BATCH {
        if index >= usize::from(header.count) {
            break;
        }
        let is_gone = if is_inbound {
            inbound_flow(packet, index)
        } else {
            flow(packet, index)
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
fn inbound_flow(packet: &Packet, index: usize) -> bool {
    let offset = size_of::<ReapHeader>() + index * size_of::<ReapInbound>();
    let Ok(item) = packet.copy::<ReapInbound>(offset) else {
        return false;
    };
    inbound::retire(&item.key, item.last_seen)
}
