//! The index of flows that are off their first candidate port.

use datapath_common::abi::{Moved, PodTuple};
use datapath_common::outcome::DropReason;

use super::entry;
use crate::nat::Mapping;
use crate::nat::tables::{FLOWS, MOVED, Refusal, Table as _};
use crate::nat::tracked::index;
use crate::scratch::FlowQuery;

/// Where a tuple's flow has been moved to. It may be gone.
#[inline(always)]
pub(in crate::nat) fn find(tuple: &PodTuple) -> Option<Mapping> {
    index::find(&MOVED, tuple).map(mapping)
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
pub(in crate::nat) fn note(request: &FlowQuery, at: Mapping) -> Result<Mapping, DropReason> {
    let FlowQuery {
        tuple, endpoint, ..
    } = request;
    let moved = Moved::new(at.eni(), at.port());
    match index::claim(&MOVED, tuple, &moved) {
        Ok(()) => return Ok(at),
        Err(Refusal::Exists) => {}
        Err(refusal) => return Err(refusal.reason(DropReason::FlowsFull)),
    }
    let Some(there) = MOVED.find(tuple).map(mapping) else {
        return Err(DropReason::NoFlow);
    };
    let key = entry::key(tuple, there);
    if let Some(found) = FLOWS.find(&key)
        && entry::has_inside(found, tuple)
    {
        if !entry::is_alive(found, &key) {
            return Err(DropReason::NoFlow);
        }
        if entry::is_owned_by(found, tuple, *endpoint) {
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
pub(in crate::nat) fn forget(tuple: &PodTuple, of: Mapping) {
    let at = MOVED.find(tuple).map(mapping);
    if at.is_some_and(|at| at.port() == of.port() && at.eni() == of.eni()) {
        index::forget(&MOVED, tuple);
    }
}
