//! Removing a flow.
//!
//! Under the lock the flow is marked dead. Every packet that would refresh it sees the mark, and no
//! other program removes it then. Its note in `MOVED` is removed before the flow itself: a note
//! that leads to a dead flow is known to be about to go.

use core::ptr;

use datapath_common::abi::{FlowKey, ReapFlow};

use super::{entry, moved};
use crate::nat::Mapping;
use crate::nat::ports::{blocks, share};
use crate::nat::tables::lock::{lock, unlock};
use crate::nat::tables::{FLOWS, Table as _, epoch, quota};

/// Removes the flow of a key with all its dependent entries, if its last packet passed at
/// `last_seen`, or in any case ([`ReapFlow::ALWAYS`]). Returns true if it did.
#[inline(never)]
pub(crate) fn retire(key: &FlowKey, last_seen: u64) -> bool {
    let Some(found) = FLOWS.find(key) else {
        return false;
    };
    // SAFETY: `found` is a map's value, which stays readable and writable while the program runs.
    let is_mine = unsafe {
        lock(&raw mut (*found).lock);
        let is_idle = last_seen == ReapFlow::ALWAYS
            || last_seen == ptr::read_volatile(&raw const (*found).last_seen);
        let is_mine = is_idle && entry::is_alive(found, key);
        if is_mine {
            ptr::write_volatile(&raw mut (*found).dead, 1);
        }
        unlock(&raw mut (*found).lock);
        is_mine
    };
    if !is_mine {
        return false;
    }
    // SAFETY: as above; the slot has no other owner before `forget`.
    let (tuple, endpoint) = unsafe {
        let endpoint = (*found).endpoint;
        (entry::tuple_of(found, key), endpoint)
    };
    moved::forget(&tuple, Mapping::new(key.eni, key.port));
    FLOWS.forget(key);
    epoch::advance(&tuple);
    blocks::give_back(key);
    share::give_back(key, endpoint);
    quota::give_back(endpoint, key.remote.is_v4());
    true
}
