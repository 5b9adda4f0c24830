//! Finding the flow of a packet, and keeping it alive.

use core::ptr;

use datapath_common::abi::{Flow, FlowKey, PodTuple};
use datapath_common::fault::Fault;
use datapath_common::ports::keeps_port;
use datapath_common::progress::{self, Ending};

use super::lock::{lock, unlock};
use super::moved;
use super::ports;
use super::request::Request;
use super::tables::{FLOWS, Table as _};
use super::{Inside, Mapping, PRIMARY, Side};
use crate::cache;
use crate::clock;
use crate::fault;
use crate::work::{self, work};

/// The flow of a packet from the inside at the port that it gets first, which keeps it alive: one
/// look-up, which most packets need no more than.
#[inline(always)]
pub(super) fn known(request: &mut Request) -> Option<Mapping> {
    let first = first(&request.tuple, request.endpoint, request.eni);
    let key = key(&request.tuple, first);
    let flow = FLOWS.find(&key)?;
    let Request {
        tuple,
        endpoint,
        tcp_flags,
        ..
    } = request;
    let Some(stack) = refreshed(flow, &key, tuple, *endpoint, *tcp_flags) else {
        request.taken = 1;
        return None;
    };
    Some(first.with_stack(stack))
}

/// The flow of a packet from the inside that is off its first candidate port, or at the ENI of a
/// former policy.
///
/// The look-up keeps the flow alive.
#[inline(always)]
pub(super) fn known_elsewhere(request: &Request) -> Option<Mapping> {
    let tuple = &request.tuple;
    let at = |mapping| {
        let found = nat_refresh(Mapping::to_register(Some(mapping)));
        Mapping::from_register(found)
    };
    let found = moved::find(tuple).and_then(at);
    if found.is_some() || !super::may_be_elsewhere() {
        return found;
    }
    other_first(request).and_then(at)
}

/// The flow of a packet from the inside wherever it is. It is not refreshed: an ICMP error keeps
/// nothing alive (RFC 5508 REQ-4). The error may go to a destination for which policy gives another
/// ENI.
#[inline(always)]
pub(super) fn peek_anywhere(request: &Request) -> Option<Mapping> {
    let tuple = &request.tuple;
    let at = |mapping| nat_alive(Mapping::to_register(Some(mapping))) != 0;
    let first = first(tuple, request.endpoint, request.eni);
    Some(first)
        .filter(|mapping| at(*mapping))
        .or_else(|| moved::find(tuple).filter(|mapping| at(*mapping)))
        .or_else(|| other_first(request).filter(|mapping| at(*mapping)))
}

/// [`refreshed`] for the request that was written: the mapping as a register, if it is there.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn nat_refresh(mapping: u32) -> u32 {
    let found = Mapping::from_register(mapping).and_then(|mapping| {
        let request = work::read(work().ok()?.request());
        let Request {
            tuple,
            endpoint,
            tcp_flags,
            ..
        } = request;
        let key = key(tuple, mapping);
        let stack = refreshed(FLOWS.find(&key)?, &key, tuple, *endpoint, *tcp_flags)?;
        Some(mapping.with_stack(stack))
    });
    Mapping::to_register(found)
}

/// [`alive`] in the same way: 1, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_alive(mapping: u32) -> u32 {
    let is_alive = Mapping::from_register(mapping)
        .is_some_and(|mapping| work().is_ok_and(|work| alive(work::read(work.request()), mapping)));
    is_alive.into()
}

/// Mapping of a tuple's flow at its first candidate port.
#[inline(always)]
fn first(tuple: &PodTuple, endpoint: u32, eni: u8) -> Mapping {
    let is_kept = keeps_port(tuple.protocol, endpoint);
    Mapping::new(eni, ports::candidate(tuple.pod, tuple.pod_port, is_kept))
}

/// The flow of a packet from the outside, which keeps it alive. `found` is called with it before it
/// is read.
#[inline(always)]
pub(crate) fn answered(
    key: &FlowKey,
    tcp_flags: u8,
    found: impl FnOnce(&PodTuple),
) -> Option<Inside> {
    let flow = FLOWS.find(key)?;
    found(&tuple_of(flow, key));
    let after = |out, inward| (out, progress::inbound(key.protocol, tcp_flags, inward));
    refresh(flow, key, after).then(|| inside(flow))
}

/// Updates a flow by a segment from the outside that ends its connection.
#[inline(always)]
pub(super) fn end(key: &FlowKey, ending: Ending, tcp_flags: u8) {
    let after = |out, inward| (out, progress::ended(ending, tcp_flags, inward));
    if let Some(flow) = FLOWS.find(key)
        && refresh(flow, key, after)
        && ending == Ending::Doubtful
    {
        // The next segment takes it back, so that the program has to see it.
        cache::epoch::advance(&tuple_of(flow, key));
    }
}

/// Updates the flow of a tuple, with this key, by the progress of a segment; returns true if it is
/// there.
#[inline(always)]
pub(crate) fn tell(key: &FlowKey, tuple: &PodTuple, from: Side, tcp_flags: u8) -> bool {
    let after = |out, inward| match from {
        Side::Pod => progress::outbound(key.protocol, tcp_flags, out, inward),
        Side::Outside => (out, progress::inbound(key.protocol, tcp_flags, inward)),
    };
    FLOWS
        .find(key)
        .is_some_and(|flow| has_inside(flow, tuple) && refresh(flow, key, after))
}

/// The flow of a packet from the outside, left as it is.
#[inline(always)]
pub(crate) fn peek_answered(key: &FlowKey) -> Option<Inside> {
    if fault::has(Fault::ErrorRefreshes) {
        return answered(key, 0, cache::rests_on);
    }
    let flow = FLOWS.find(key)?;
    is_alive(flow, key).then(|| inside(flow))
}

/// True if no flow has the inside port of a request, towards its remote.
#[inline(always)]
pub(super) fn is_own_port_free(request: &Request) -> bool {
    let key = key(&request.tuple, request.at(request.tuple.pod_port));
    peek_answered(&key).is_none()
}

/// Where the flow of a tuple would be at the ENI that another policy gives. There are two that a
/// policy can give: the owner and the primary.
#[inline(always)]
fn other_first(request: &Request) -> Option<Mapping> {
    let eni = if request.eni == request.owner {
        PRIMARY
    } else {
        request.owner
    };
    let is_other = eni != request.eni && !fault::has(Fault::PolicyChangeIgnored);
    is_other.then(|| first(&request.tuple, request.endpoint, eni))
}

/// The key of a tuple's flow that looks like this from the outside.
#[inline(always)]
pub(super) fn key(tuple: &PodTuple, mapping: Mapping) -> FlowKey {
    FlowKey::new(
        mapping.eni(),
        tuple.protocol,
        tuple.remote,
        tuple.remote_port,
        mapping.port(),
    )
}

/// True if a flow is an endpoint's with this tuple; keeps it alive. Some(true) for one whose
/// packets take the stack.
#[inline(always)]
fn refreshed(
    flow: *mut Flow,
    key: &FlowKey,
    tuple: &PodTuple,
    endpoint: u32,
    tcp_flags: u8,
) -> Option<bool> {
    let after = |out, inward| {
        let (shown, inward) = progress::outbound(tuple.protocol, tcp_flags, out, inward);
        (shown | progress::more(tuple.protocol, out), inward)
    };
    let is_it = is_owned_by(flow, tuple, endpoint) && refresh(flow, key, after);
    // SAFETY: `flow` is a map's value, which stays readable while the program runs.
    is_it.then(|| unsafe { ptr::read_volatile(&raw const (*flow).stack) != 0 })
}

/// True if a mapping leads to a flow of this request.
#[inline(always)]
fn alive(request: &Request, mapping: Mapping) -> bool {
    let Request {
        tuple, endpoint, ..
    } = request;
    let key = key(tuple, mapping);
    FLOWS
        .find(&key)
        .is_some_and(|flow| is_owned_by(flow, tuple, *endpoint) && is_alive(flow, &key))
}

/// Notes that a flow's answers take the stack.
#[inline(always)]
pub(super) fn take_stack(request: &Request, mapping: Mapping) {
    let key = key(&request.tuple, mapping);
    let Some(flow) = FLOWS.find(&key) else {
        return;
    };
    if is_owned_by(flow, &request.tuple, request.endpoint) && is_alive(flow, &key) {
        // SAFETY: `flow` is a map's value, which stays readable and writable while the program runs.
        unsafe {
            if ptr::read_volatile(&raw const (*flow).stack) == 0 {
                ptr::write_volatile(&raw mut (*flow).stack, 1);
                cache::epoch::advance(&request.tuple);
            }
        }
    }
}

/// True if a flow has this tuple's inside, and is this endpoint's.
#[inline(always)]
pub(super) fn is_owned_by(flow: *const Flow, tuple: &PodTuple, endpoint: u32) -> bool {
    // SAFETY: `flow` is a map's value, which stays readable while the program runs.
    let of = unsafe { (*flow).endpoint };
    let is_own = has_inside(flow, tuple) && (of == endpoint || fault::has(Fault::FormerPodsFlow));
    is_own || fault::has(Fault::AnybodysFlow)
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
pub(super) fn is_alive(flow: *const Flow, key: &FlowKey) -> bool {
    // SAFETY: as for `is_owned_by`. `dead` is read first: who gives the slot to another flow
    // clears it together with the rest.
    unsafe {
        let lives = ptr::read_volatile(&raw const (*flow).dead) == 0;
        (lives || fault::has(Fault::DeadFlow)) && (*flow).is_of(key)
    }
}

#[inline(always)]
fn inside(flow: *const Flow) -> Inside {
    // SAFETY: as for `is_owned_by`.
    let flow = unsafe { &*flow };
    Inside {
        pod: flow.pod,
        port: if fault::has(Fault::InsidePort) {
            0
        } else {
            flow.pod_port
        },
        endpoint: flow.endpoint,
        stack: flow.stack != 0 && !fault::has(Fault::StackReturnPassed),
    }
}

/// Keeps a flow alive and records its progress; returns true if it is still the flow of its key.
///
/// No lifetime is so short that a flow seen within the last second can be removed, so that needs
/// no lock. And it need not be written then, so the cache line stays shared between the CPUs.
#[inline(always)]
fn refresh(flow: *mut Flow, key: &FlowKey, after: impl FnOnce(u8, u8) -> (u8, u8)) -> bool {
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
        let (out_after, inward_after) = after(out, inward);
        // Each direction writes its own byte, so that neither undoes what the other one wrote.
        if out_after != out && !fault::has(Fault::Progress) {
            ptr::write_volatile(&raw mut (*flow).progress_out, out_after);
        }
        if inward_after != inward {
            ptr::write_volatile(&raw mut (*flow).progress_in, inward_after);
        }
        // The cache updates a flow with the first progress of each direction.
        if progress::is_turned((out, inward), (out_after, inward_after)) {
            cache::epoch::advance(&tuple_of(flow, key));
        }
    }
    true
}

/// A flow as the pod sees it.
#[inline(always)]
pub(super) fn tuple_of(flow: *const Flow, key: &FlowKey) -> PodTuple {
    // SAFETY: `flow` is a map's value, which stays readable while the program runs.
    let flow = unsafe { &*flow };
    PodTuple::new(
        key.protocol,
        flow.pod,
        flow.pod_port,
        key.remote,
        key.remote_port,
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
