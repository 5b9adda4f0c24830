//! Room of the tables that all endpoints share. Where a table is nearly full, each endpoint gets its
//! share of the rest and no more, so that greedy ones leave room to others.
//!
//! User space gives each CPU a part of the entries up to half of a table as credit. A CPU that has
//! spent its credit counts its entries, so a table that fills is crowded also where user space does
//! not look any more.

use core::ptr;

use datapath_common::abi::{Room, ShareKey, SharedTable};
use datapath_common::outcome::DropReason;

use super::lock::{lock, unlock};
use super::{Table as _, quota};
use crate::base::maps::{CREDIT, ROOM, SHARES};

/// Counts a new entry of a table for an endpoint; true if it may have one.
#[inline(always)]
pub(in crate::nat) fn take(table: SharedTable, endpoint: u32) -> bool {
    nat_room_take(table as u32, endpoint) != 0
}

/// Spends one of this CPU's credit; true if there was any.
#[inline(always)]
fn spend(table: u32) -> bool {
    let Some(credit) = CREDIT.get_ptr_mut(table) else {
        return false;
    };
    // SAFETY: `credit` is a map's value, which stays readable and writable while the program runs.
    unsafe {
        let left = ptr::read_volatile(credit);
        if left == 0 {
            return false;
        }
        ptr::write_volatile(credit, left - 1);
    }
    true
}

/// Counts an entry less.
#[inline(always)]
pub(in crate::nat) fn give_back(table: SharedTable, endpoint: u32) {
    let _done = nat_room_give_back(table as u32, endpoint);
}

/// 1 if an endpoint may have one more entry of a table, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_room_take(table: u32, endpoint: u32) -> u32 {
    if spend(table) {
        return 1;
    }
    let Some(room) = ROOM.get_ptr_mut(table) else {
        return 1;
    };
    // SAFETY: `room` is a map's value, which stays readable and writable while the program runs.
    let (is_open, share) = unsafe {
        let open = ptr::read_volatile(&raw const (*room).open);
        if open == 0 {
            return 1;
        }
        let used = change(room, 1);
        (used <= open, ptr::read_volatile(&raw const (*room).share))
    };
    if is_open {
        return 1;
    }
    let key = key(table, endpoint);
    if quota::add(&SHARES, &key, share, DropReason::FlowsFull).is_ok() {
        return 1;
    }
    // SAFETY: as above.
    unsafe { change(room, -1) };
    0
}

/// Counts an entry less, one of the endpoint's share first; gives 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_room_give_back(table: u32, endpoint: u32) -> u32 {
    if let Some(room) = ROOM.get_ptr_mut(table) {
        // SAFETY: as for `nat_room_take`.
        unsafe { change(room, -1) };
        let key = key(table, endpoint);
        if let Some(share) = SHARES.find(&key)
            && quota::count_down(share) == 0
        {
            SHARES.forget(&key);
        }
    }
    0
}

/// Changes the number of entries, and returns it.
///
/// # Safety
/// `room` is a map's value.
#[inline(always)]
unsafe fn change(room: *mut Room, by: i32) -> u32 {
    // SAFETY: by the caller.
    unsafe {
        let used = &raw mut (*room).used;
        lock(&raw mut (*room).lock);
        let after = ptr::read_volatile(used).saturating_add_signed(by);
        ptr::write_volatile(used, after);
        unlock(&raw mut (*room).lock);
        after
    }
}

/// The key of an endpoint's share. Any number but the first three is that of the last table.
#[inline(always)]
fn key(table: u32, endpoint: u32) -> ShareKey {
    const FLOWS_V4: u32 = SharedTable::FlowsV4 as u32;
    const FLOWS_V6: u32 = SharedTable::FlowsV6 as u32;
    const INBOUND: u32 = SharedTable::Inbound as u32;
    let table = match table {
        FLOWS_V4 => SharedTable::FlowsV4,
        FLOWS_V6 => SharedTable::FlowsV6,
        INBOUND => SharedTable::Inbound,
        _ => SharedTable::Stack,
    };
    ShareKey::of_table(table, endpoint)
}
