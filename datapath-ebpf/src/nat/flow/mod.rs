//! Finding the flow of a packet, and keeping it alive.

mod entry;
pub(super) mod moved;
pub(crate) mod retire;

use core::ptr;

use datapath_common::abi::{FlowKey, PodTuple};
use datapath_common::ports::keeps_port;
use datapath_common::progress::{self, Ending};

use super::tables::{FLOWS, Table as _, epoch};
use super::{Direction, Inside, Mapping, ports};
use crate::base::PRIMARY_ENI;
use crate::scratch::{self, FlowQuery, scratch};

use entry::{SentBy, has_inside, inside, is_owned_by, key, refresh, refreshed};
pub(super) use entry::{is_alive, tuple_of};

/// The flow of a packet from the inside at the port that it gets first, which keeps it alive: one
/// look-up, which most packets need no more than.
#[inline(always)]
pub(super) fn known(request: &mut FlowQuery) -> Option<Mapping> {
    let first = first(&request.tuple, request.endpoint, request.eni);
    let key = key(&request.tuple, first);
    let flow = FLOWS.find(&key)?;
    let by = SentBy::of(request);
    let Some(stack) = refreshed(flow, &key, &request.tuple, by) else {
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
pub(super) fn known_elsewhere(request: &FlowQuery) -> Option<Mapping> {
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
pub(super) fn peek_anywhere(request: &FlowQuery) -> Option<Mapping> {
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
        let request = scratch::read(scratch().ok()?.request());
        let key = key(&request.tuple, mapping);
        let flow = FLOWS.find(&key)?;
        let by = SentBy::of(request);
        let stack = refreshed(flow, &key, &request.tuple, by)?;
        Some(mapping.with_stack(stack))
    });
    Mapping::to_register(found)
}

/// [`alive`] as well: 1, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_alive(mapping: u32) -> u32 {
    let is_alive = Mapping::from_register(mapping).is_some_and(|mapping| {
        scratch().is_ok_and(|scratch| alive(scratch::read(scratch.request()), mapping))
    });
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
    let after = |out, inward, _is_fresh| (out, progress::inbound(key.protocol, tcp_flags, inward));
    refresh(flow, key, after).then(|| inside(flow))
}

/// Updates a flow by a segment from the outside that ends its connection.
#[inline(always)]
pub(super) fn end(key: &FlowKey, ending: Ending, tcp_flags: u8) {
    let after = |out, inward, _is_fresh| (out, progress::ended(ending, tcp_flags, inward));
    if let Some(flow) = FLOWS.find(key)
        && refresh(flow, key, after)
        && ending.is_doubtful()
    {
        // The next segment takes it back, so that the program has to see it.
        epoch::advance(&tuple_of(flow, key));
    }
}

/// Updates the flow of a tuple, with this key, by the progress of a segment; returns true if it is
/// there.
#[inline(always)]
pub(crate) fn tell(key: &FlowKey, tuple: &PodTuple, from: Direction, tcp_flags: u8) -> bool {
    let after = |out, inward, _is_fresh| match from {
        Direction::FromPod => progress::outbound(key.protocol, tcp_flags, out, inward),
        Direction::ToPod => (out, progress::inbound(key.protocol, tcp_flags, inward)),
    };
    FLOWS
        .find(key)
        .is_some_and(|flow| has_inside(flow, tuple) && refresh(flow, key, after))
}

/// The flow of a packet from the outside, left as it is.
#[inline(always)]
pub(crate) fn peek_answered(key: &FlowKey) -> Option<Inside> {
    let flow = FLOWS.find(key)?;
    is_alive(flow, key).then(|| inside(flow))
}

/// True if no flow has the inside port of a request, towards its remote.
#[inline(always)]
pub(super) fn is_own_port_free(request: &FlowQuery) -> bool {
    let key = key(&request.tuple, request.at(request.tuple.pod_port));
    peek_answered(&key).is_none()
}

/// Where the flow of a tuple would be at the ENI that another policy gives. There are two that a
/// policy can give: the owner and the primary.
#[inline(always)]
fn other_first(request: &FlowQuery) -> Option<Mapping> {
    let eni = if request.eni == request.owner {
        PRIMARY_ENI
    } else {
        request.owner
    };
    (eni != request.eni).then(|| first(&request.tuple, request.endpoint, eni))
}

/// True if a mapping leads to a flow of this request.
#[inline(always)]
fn alive(request: &FlowQuery, mapping: Mapping) -> bool {
    let FlowQuery {
        tuple, endpoint, ..
    } = request;
    let key = key(tuple, mapping);
    FLOWS
        .find(&key)
        .is_some_and(|flow| is_owned_by(flow, tuple, *endpoint) && is_alive(flow, &key))
}

/// Notes that a flow's answers take the stack.
#[inline(always)]
pub(super) fn take_stack(request: &FlowQuery, mapping: Mapping) {
    let key = key(&request.tuple, mapping);
    let Some(flow) = FLOWS.find(&key) else {
        return;
    };
    if is_owned_by(flow, &request.tuple, request.endpoint) && is_alive(flow, &key) {
        // SAFETY: `flow` is a map's value, which stays readable and writable while the program
        // runs.
        unsafe {
            if ptr::read_volatile(&raw const (*flow).stack) == 0 {
                ptr::write_volatile(&raw mut (*flow).stack, 1);
                epoch::advance(&request.tuple);
            }
        }
    }
}
