//! Redirection by the kernel's helpers, all of 5.10. They only note where to; the program's return
//! code makes it so.

use core::{hint, ptr};

use aya_ebpf::bindings::{TC_ACT_REDIRECT, bpf_redir_neigh};
use aya_ebpf::helpers::generated::{bpf_redirect, bpf_redirect_neigh, bpf_redirect_peer};
use datapath_common::abi::AddressEntry;
use datapath_common::outcome::DropReason;

use crate::base::mark::Mark;
use crate::packet::Packet;
use crate::scratch::NextHop;

/// The size of a next hop, in bytes.
const NEXT_HOP_SIZE: i32 = 20;
const _: () = assert!(size_of::<NextHop>() == 20 && size_of::<bpf_redir_neigh>() == 20);

/// Sends a packet as it is into the namespace of the peer of a veth device.
///
/// The mark is cleared: it belongs to this namespace, and the kernel does not clear it.
#[inline(always)]
pub(crate) fn to_peer(packet: &mut Packet, ifindex: u32) -> Result<(), DropReason> {
    packet.clear_mark();
    // SAFETY: the helper takes numbers only.
    noted(unsafe { bpf_redirect_peer(ifindex, 0) })
}

/// Marks a packet as done for the program at the ENI that it is sent to.
#[inline(always)]
pub(crate) fn mark_done(packet: &mut Packet) {
    packet.set_mark(Mark::done());
}

/// The MAC that a packet to a pod comes from.
#[inline(always)]
pub(crate) fn source_mac(endpoint: &AddressEntry) -> [u8; 6] {
    *endpoint.host_mac()
}

/// Sends the packet out of a device to a next hop; the kernel resolves and writes the MACs.
#[inline(always)]
pub(crate) fn to_neighbour(ifindex: u32, next_hop: &NextHop) -> Result<(), DropReason> {
    let next_hop = ptr::from_ref(next_hop).cast_mut().cast();
    // SAFETY: the helper reads as many bytes of `next_hop` as it has, and writes none.
    noted(unsafe { bpf_redirect_neigh(ifindex, next_hop, NEXT_HOP_SIZE, 0) })
}

/// Sends the packet out of a device as it is, with the MACs that it has.
#[inline(always)]
pub(crate) fn framed(ifindex: u32) -> Result<(), DropReason> {
    // SAFETY: the helper takes numbers only.
    noted(unsafe { bpf_redirect(ifindex, 0) })
}

/// Result that a redirect helper's return code stands for.
#[inline(always)]
fn noted(code: i64) -> Result<(), DropReason> {
    if code == i64::from(TC_ACT_REDIRECT) {
        Ok(())
    } else {
        hint::cold_path();
        Err(DropReason::HelperFailed)
    }
}
