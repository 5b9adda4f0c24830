//! The index of flows that are off their first candidate port.

use crate::fault;
use datapath_common::abi::{Moved, PodTuple};
use datapath_common::fault::Fault;
use datapath_common::outcome::DropReason;

use super::Mapping;
use super::flow;
use super::noted;
use super::request::Request;
use super::tables::{FLOWS, MOVED, Refusal, Table as _};

/// Where a tuple's flow has been moved to. It may be gone.
#[inline(always)]
pub(super) fn find(tuple: &PodTuple) -> Option<Mapping> {
    if fault::has(Fault::MovedIgnored) {
        return None;
    }
    noted::find(&MOVED, tuple).map(mapping)
}

#[inline(always)]
fn mapping(moved: *mut Moved) -> Mapping {
    // SAFETY: a map's value stays readable while the program runs, and it is never written in
    // place.
    let moved = unsafe { *moved };
    Mapping::new(moved.eni, moved.port)
}

/// Notes where a tuple's new flow is. Where another CPU was faster, gives that one's flow.
///
/// A note that leads nowhere is replaced. One that leads to a dead flow is about to be removed
/// together with it ([`super::retire`]), and would take the replacement with it; the packet is
/// lost then, for it belongs to a flow that is no more. Its repetition will not be.
#[inline(always)]
pub(super) fn note(request: &Request, at: Mapping) -> Result<Mapping, DropReason> {
    let Request {
        tuple, endpoint, ..
    } = request;
    let moved = Moved::new(at.eni(), at.port());
    match noted::claim(&MOVED, tuple, &moved) {
        Ok(()) => return Ok(at),
        Err(Refusal::Exists) => {}
        Err(refusal) => return Err(refusal.reason(DropReason::FlowsFull)),
    }
    let Some(there) = MOVED.find(tuple).map(mapping) else {
        return Err(DropReason::NoFlow);
    };
    let key = flow::key(tuple, there);
    if let Some(found) = FLOWS.find(&key)
        && flow::has_inside(found, tuple)
    {
        if !flow::is_alive(found, &key) {
            return Err(DropReason::NoFlow);
        }
        if flow::is_owned_by(found, tuple, *endpoint) {
            return Ok(there);
        }
        // It belongs to a former pod with the address, and to no endpoint now.
    }
    MOVED
        .replace(tuple, &moved)
        .map(|()| at)
        .map_err(|refusal| refusal.reason(DropReason::FlowsFull))
}

/// Removes the note of a flow, unless it is of another one by now.
#[inline(always)]
pub(super) fn forget(tuple: &PodTuple, of: Mapping) {
    let at = MOVED.find(tuple).map(mapping);
    if at.is_some_and(|at| at.port() == of.port() && at.eni() == of.eni()) {
        noted::forget(&MOVED, tuple);
    }
}
