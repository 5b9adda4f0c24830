//! Removing a flow.
//!
//! Under the lock the flow is marked dead. Every packet that would refresh it sees the mark, and no
//! other program removes it then. Its note in `MOVED` is removed before the flow itself: a note
//! that leads to a dead flow is known to be about to go.

use core::ptr;

use aya_ebpf::bindings::__sk_buff;
use datapath_common::abi::{AddressEntry, FlowKey, HOST, ReapFlow};
use datapath_common::headers::protocol;
use datapath_common::progress;

use super::{entry, moved};
use crate::base::maps;
use crate::nat::Mapping;
use crate::nat::ending::{self, OF_HOST};
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

/// True if the connection of a flow that is suspected of being over goes on, as its endpoint's
/// kernel says. The flow is suspected no more then.
#[inline(never)]
pub(crate) fn acquit(skb: *mut __sk_buff, key: &FlowKey) -> bool {
    let Some(found) = FLOWS.find(key) else {
        return false;
    };
    // SAFETY: `found` is a map's value, which stays readable and writable while the program runs.
    let (inward, endpoint) = unsafe {
        let inward = ptr::read_volatile(&raw const (*found).progress_in);
        (inward, (*found).endpoint)
    };
    let is_suspect = key.protocol == protocol::TCP && inward & progress::SUSPECT != 0;
    if !is_suspect || !entry::is_alive(found, key) {
        return false;
    }
    let tuple = entry::tuple_of(found, key);
    let namespace = if endpoint == HOST {
        OF_HOST
    } else {
        maps::address(&tuple.pod)
            .filter(|entry| entry.is_endpoint() && entry.identity() == endpoint)
            .map_or(0, AddressEntry::namespace)
    };
    if !ending::goes_on(skb, &tuple, namespace) {
        return false;
    }
    let inward = inward & !(progress::SUSPECT | progress::DOUBT);
    // SAFETY: as above.
    unsafe { ptr::write_volatile(&raw mut (*found).progress_in, inward) };
    true
}
