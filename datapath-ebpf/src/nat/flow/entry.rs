//! An entry of the flow table: its key and owner, its life and its progress.

use core::ptr;

use datapath_common::abi::{Flow, FlowKey, PodTuple, TransportAddr};
use datapath_common::progress::{self, Progress};

use crate::base::clock;
use crate::nat::tables::epoch;
use crate::nat::tables::lock::{lock, unlock};
use crate::nat::{Inside, Mapping};
use crate::scratch::FlowQuery;

/// The key of a tuple's flow that looks like this from the outside.
#[inline(always)]
pub(super) fn key(tuple: &PodTuple, mapping: Mapping) -> FlowKey {
    FlowKey::new(
        mapping.eni(),
        tuple.protocol,
        TransportAddr::new(tuple.remote, tuple.remote_port),
        mapping.port(),
    )
}

/// Endpoint that sends a packet, and the flags of its TCP header, else 0.
#[derive(Clone, Copy)]
pub(super) struct SentBy {
    endpoint: u32,
    tcp_flags: u8,
}

impl SentBy {
    /// Those of the requested flow.
    #[inline(always)]
    pub(super) fn of(request: &FlowQuery) -> Self {
        Self {
            endpoint: request.endpoint,
            tcp_flags: request.tcp_flags,
        }
    }
}

/// True if a flow is an endpoint's with this tuple; keeps it alive. Some(true) for one whose
/// packets take the stack.
#[inline(always)]
pub(super) fn refreshed(
    flow: *mut Flow,
    key: &FlowKey,
    tuple: &PodTuple,
    by: SentBy,
) -> Option<bool> {
    let SentBy {
        endpoint,
        tcp_flags,
    } = by;
    let after = |out, inward, is_fresh| {
        let (shown, inward) = progress::outbound(tuple.protocol, tcp_flags, out, inward);
        let more = progress::more(tuple.protocol, out) * u8::from(is_fresh);
        (shown | more, inward)
    };
    let is_it = is_owned_by(flow, tuple, endpoint) && refresh(flow, key, after);
    // SAFETY: `flow` is a map's value, which stays readable while the program runs.
    is_it.then(|| unsafe { ptr::read_volatile(&raw const (*flow).stack) != 0 })
}

/// True if a flow has this tuple's inside, and is this endpoint's.
#[inline(always)]
pub(super) fn is_owned_by(flow: *const Flow, tuple: &PodTuple, endpoint: u32) -> bool {
    // SAFETY: `flow` is a map's value, which stays readable while the program runs.
    let of = unsafe { (*flow).endpoint };
    has_inside(flow, tuple) && of == endpoint
}

/// True if a flow has this tuple's inside, whatever endpoint owned it.
#[inline(always)]
pub(super) fn has_inside(flow: *const Flow, tuple: &PodTuple) -> bool {
    // SAFETY: as for `is_owned_by`.
    let flow = unsafe { &*flow };
    flow.pod == tuple.pod && flow.pod_port == tuple.pod_port
}

/// True if a value is the flow of its key still.
#[inline(always)]
pub(in crate::nat) fn is_alive(flow: *const Flow, key: &FlowKey) -> bool {
    // SAFETY: as for `is_owned_by`. `dead` is read first: who gives the slot to another flow
    // clears it together with the rest.
    unsafe {
        let lives = ptr::read_volatile(&raw const (*flow).dead) == 0;
        lives && (*flow).is_of(key)
    }
}

/// Where the answers of a flow go.
#[inline(always)]
pub(super) fn inside(flow: *const Flow) -> Inside {
    // SAFETY: as for `is_owned_by`.
    let flow = unsafe { &*flow };
    Inside {
        pod: flow.pod,
        port: flow.pod_port,
        endpoint: flow.endpoint,
        stack: flow.stack != 0,
    }
}

/// Keeps a flow alive and records its progress; returns true if it is still the flow of its key.
/// `after` also learns if a packet was seen within the last second.
///
/// No lifetime is so short that a flow seen within the last second can be removed, so that needs
/// no lock. And it need not be written then, so the cache line stays shared between the CPUs.
#[inline(always)]
pub(super) fn refresh(
    flow: *mut Flow,
    key: &FlowKey,
    after: impl FnOnce(u8, u8, bool) -> (u8, u8),
) -> bool {
    let now = clock::now();
    // SAFETY: `flow` is a map's value, which stays readable and writable while the program runs.
    // Others write it at the same time; every field is read and written once, as a word.
    unsafe {
        let last_seen = ptr::read_volatile(&raw const (*flow).last_seen);
        // Another CPU may have read the clock after this one.
        let is_fresh = now.saturating_sub(last_seen) < clock::seconds(1);
        if is_fresh {
            if !(*flow).is_of(key) {
                return false;
            }
        } else if !revive(flow, key, now) {
            return false;
        }
        let out = ptr::read_volatile(&raw const (*flow).progress_out);
        let inward = ptr::read_volatile(&raw const (*flow).progress_in);
        let (out_after, inward_after) = after(out, inward, is_fresh);
        // Each direction writes its own byte, so that neither undoes what the other one wrote.
        if out_after != out {
            ptr::write_volatile(&raw mut (*flow).progress_out, out_after);
        }
        if inward_after != inward {
            ptr::write_volatile(&raw mut (*flow).progress_in, inward_after);
        }
        // The cache updates a flow with the first progress of each direction.
        let before = Progress { out, inward };
        let after = Progress {
            out: out_after,
            inward: inward_after,
        };
        if progress::is_turned(before, after) {
            epoch::advance(&tuple_of(flow, key));
        }
    }
    true
}

/// A flow as the pod sees it.
#[inline(always)]
pub(in crate::nat) fn tuple_of(flow: *const Flow, key: &FlowKey) -> PodTuple {
    // SAFETY: `flow` is a map's value, which stays readable while the program runs.
    let flow = unsafe { &*flow };
    PodTuple::new(
        key.protocol,
        TransportAddr::new(flow.pod, flow.pod_port),
        TransportAddr::new(key.remote, key.remote_port),
    )
}

/// Notes that a flow lives that has been idle, unless it is being removed.
///
/// # Safety
/// `flow` is a map's value.
#[inline(always)]
unsafe fn revive(flow: *mut Flow, key: &FlowKey, now: u64) -> bool {
    // SAFETY: by the caller.
    unsafe {
        lock(&raw mut (*flow).lock);
        let lives = is_alive(flow, key);
        if lives {
            ptr::write_volatile(&raw mut (*flow).last_seen, now);
        }
        unlock(&raw mut (*flow).lock);
        lives
    }
}
