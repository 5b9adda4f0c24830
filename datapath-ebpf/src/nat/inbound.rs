//! Flows opened from outside the exempt destinations, whose answers are not translated.

use core::ptr;

use datapath_common::abi::{Inbound, PodTuple, ReapFlow};
use datapath_common::counter::NatStat;
use datapath_common::fault::Fault;
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;
use datapath_common::progress;

use super::lock::{lock, unlock};
use super::tables::{Refusal, Table as _};
use super::{quota, stats};
use crate::clock;
use crate::fault;
use crate::maps::INBOUND;

/// Whether a packet of an endpoint belongs to an inbound flow; keeps that alive.
#[inline(always)]
pub(crate) fn known(tuple: &PodTuple, endpoint: u32, tcp_flags: u8) -> bool {
    INBOUND.find(tuple).is_some_and(|found| {
        is_of(found, endpoint) && refresh(found, progress::of_packet(tuple.protocol, tcp_flags))
    })
}

/// Whether an endpoint has an inbound flow; leaves it as it is.
#[inline(always)]
pub(crate) fn peek(tuple: &PodTuple, endpoint: u32) -> bool {
    INBOUND.find(tuple).is_some_and(|found| {
        // SAFETY: a map's value stays readable while the program runs.
        let lives = unsafe { ptr::read_volatile(&raw const (*found).dead) == 0 };
        lives && is_of(found, endpoint)
    })
}

/// Notes an inbound flow of an endpoint, or keeps the one alive that there is. TCP's come with the
/// pod's answer, others with what arrives, which shows nothing of the pod.
#[inline(always)]
pub(super) fn note(tuple: &PodTuple, endpoint: u32, tcp_flags: u8) -> Result<(), DropReason> {
    let shown = if tuple.protocol == protocol::TCP {
        progress::of_packet(protocol::TCP, tcp_flags)
    } else {
        0
    };
    if let Some(found) = INBOUND.find(tuple) {
        if !is_of(found, endpoint) {
            // The former pod with the address has left it behind.
            retire(tuple, ReapFlow::ALWAYS);
        } else if refresh(found, shown) {
            return Ok(());
        }
    }
    quota::take_inbound(endpoint)?;
    let refusal = match INBOUND.claim(tuple, &Inbound::new(clock::now(), endpoint, shown)) {
        Ok(()) => {
            stats::count_of(NatStat::InboundNoted, tuple.pod.is_v4());
            return Ok(());
        }
        Err(refusal) => refusal,
    };
    quota::give_back_inbound(endpoint);
    match refusal {
        // Another CPU was faster, or the flow is just being removed; then the next packet makes
        // it anew.
        Refusal::Exists => Ok(()),
        Refusal::Full | Refusal::Failed => Err(refusal.reason(DropReason::InboundFull)),
    }
}

/// Whether a flow is of this endpoint.
#[inline(always)]
fn is_of(found: *const Inbound, endpoint: u32) -> bool {
    // SAFETY: a map's value stays readable while the program runs.
    let of = unsafe { ptr::read_volatile(&raw const (*found).endpoint) };
    of == endpoint || fault::has(Fault::FormerPodsFlow)
}

/// Removes the flow of a tuple, if its last packet passed at `last_seen`, or in any case
/// ([`ReapFlow::ALWAYS`]). Tells whether it did.
#[inline(always)]
pub(crate) fn retire(tuple: &PodTuple, last_seen: u64) -> bool {
    let Some(found) = INBOUND.find(tuple) else {
        return false;
    };
    // SAFETY: `found` is a map's value, which stays readable and writable while the program runs.
    let is_mine = unsafe {
        lock(&raw mut (*found).lock);
        let is_idle = last_seen == ReapFlow::ALWAYS
            || last_seen == ptr::read_volatile(&raw const (*found).last_seen);
        let is_mine = is_idle && ptr::read_volatile(&raw const (*found).dead) == 0;
        if is_mine {
            ptr::write_volatile(&raw mut (*found).dead, 1);
        }
        unlock(&raw mut (*found).lock);
        is_mine
    };
    if is_mine {
        // SAFETY: as above; the slot is nobody else's before `forget`.
        let endpoint = unsafe { (*found).endpoint };
        INBOUND.forget(tuple);
        quota::give_back_inbound(endpoint);
        stats::count_of(NatStat::InboundRemoved, tuple.pod.is_v4());
    }
    is_mine
}

/// Keeps a flow alive, as [`super::flow`] does it; tells whether it lives. A slot that is another
/// flow's by now makes no difference: this one has lived until a moment ago.
#[inline(always)]
fn refresh(found: *mut Inbound, shown: u8) -> bool {
    let now = clock::now();
    // SAFETY: `found` is a map's value, which stays readable and writable while the program runs.
    // Others write it at the same time; every field is read and written once, as a word.
    unsafe {
        let last_seen = ptr::read_volatile(&raw const (*found).last_seen);
        if now.saturating_sub(last_seen) >= clock::seconds(1) {
            lock(&raw mut (*found).lock);
            let lives = ptr::read_volatile(&raw const (*found).dead) == 0;
            if lives {
                ptr::write_volatile(&raw mut (*found).last_seen, now);
            }
            unlock(&raw mut (*found).lock);
            if !lives {
                return false;
            }
        }
        let before = ptr::read_volatile(&raw const (*found).progress_out);
        // A SYN begins anew what stood there.
        let after = if shown & progress::SYN != 0 {
            shown
        } else {
            before | shown
        };
        if after != before {
            ptr::write_volatile(&raw mut (*found).progress_out, after);
        }
    }
    true
}
