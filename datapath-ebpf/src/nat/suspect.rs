//! Flows whose connection may be over. The reaper looks up the endpoint's socket again.

use core::ptr;

use aya_ebpf::bindings::__sk_buff;
use datapath_common::abi::{AddressEntry, FlowKey, HOST};
use datapath_common::headers::protocol;
use datapath_common::progress;

use super::ending::{self, OF_HOST};
use super::flow::{is_alive, tuple_of};
use super::tables::{FLOWS, Table as _};
use crate::base::maps;

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
    if !is_suspect || !is_alive(found, key) {
        return false;
    }
    let tuple = tuple_of(found, key);
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
