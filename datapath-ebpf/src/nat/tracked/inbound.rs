//! Flows opened from outside the exempt destinations, whose answers are not translated.

use datapath_common::abi::{PodTuple, TrackedFlow};
use datapath_common::counter::NatStat;
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;
use datapath_common::progress::{self, Ending};

use super::{entry, index};
use crate::base::clock;
use crate::base::maps::INBOUND;
use crate::nat::tables::{Refusal, Table as _, quota, stats};
use crate::policy;

/// True if a packet of an endpoint belongs to an inbound flow; keeps that alive.
#[inline(always)]
pub(in crate::nat) fn known(tuple: &PodTuple, endpoint: u32, tcp_flags: u8) -> bool {
    let shown = progress::of_packet(tuple.protocol, tcp_flags);
    index::find(&INBOUND, tuple)
        .is_some_and(|found| entry::refresh(found, tuple, endpoint, entry::Shown::of_pod(shown)))
}

/// Updates an endpoint's inbound flow for a segment from the outside: keeps its flow mark alive,
/// and records the segment's progress. `ending` judges a segment that ends the connection.
///
/// Segments from remotes that are no longer masqueraded are not recorded. The pod's answers to them
/// need no flow mark, and the flow cache serves such segments without a look-up of it.
#[inline(always)]
pub(in crate::nat) fn seen(
    tuple: &PodTuple,
    endpoint: u32,
    tcp_flags: u8,
    ending: impl FnOnce() -> Ending,
) {
    let Some(found) = index::find(&INBOUND, tuple) else {
        return;
    };
    if !policy::is_translated(tuple.remote) {
        return;
    }
    let shown = progress::of_packet(protocol::TCP, tcp_flags) & !progress::SYN;
    let shown = if progress::ends(tcp_flags) {
        match ending() {
            Ending::Ignored => return,
            Ending::Doubtful | Ending::Near => {
                shown & !(progress::FIN | progress::RST) | progress::DOUBT
            }
            Ending::Believed => shown,
        }
    } else {
        shown
    };
    entry::refresh(found, tuple, endpoint, entry::Shown::of_remote(shown));
}

/// True if an endpoint has an inbound flow; leaves it as it is.
#[inline(always)]
pub(in crate::nat) fn peek(tuple: &PodTuple, endpoint: u32) -> bool {
    index::find(&INBOUND, tuple)
        .is_some_and(|found| entry::is_alive(found, tuple) && entry::is_owned_by(found, endpoint))
}

/// Notes an inbound flow of an endpoint, or keeps the one alive that there is. TCP's come with the
/// pod's answer, others with what arrives, which shows nothing of the pod.
#[inline(always)]
pub(in crate::nat) fn note(
    tuple: &PodTuple,
    endpoint: u32,
    tcp_flags: u8,
) -> Result<(), DropReason> {
    let shown = if tuple.protocol == protocol::TCP {
        progress::of_packet(protocol::TCP, tcp_flags)
    } else {
        0
    };
    let found = INBOUND.find(tuple);
    if let Some(found) = found
        && entry::refresh(found, tuple, endpoint, entry::Shown::of_pod(shown))
    {
        return Ok(());
    }
    let noted = anew(found, tuple, endpoint, shown);
    if noted.is_err() {
        stats::count(NatStat::InboundFailed, tuple.pod.is_v4());
    }
    noted
}

/// Notes a flow that the endpoint does not have, in place of a former one's if there is one.
#[inline(always)]
fn anew(
    found: Option<*mut TrackedFlow>,
    tuple: &PodTuple,
    endpoint: u32,
    shown: u8,
) -> Result<(), DropReason> {
    quota::take_inbound(endpoint)?;
    let value = TrackedFlow::new(tuple, clock::now(), endpoint, shown);
    if let Some(found) = found
        && let Some(former) = entry::take_over(found, tuple, &value)
    {
        quota::give_back_inbound(former);
        return Ok(());
    }
    let put = index::claim(&INBOUND, tuple, &value);
    if put.is_err() {
        quota::give_back_inbound(endpoint);
    }
    match put {
        Ok(()) => {
            stats::count(NatStat::InboundNoted, tuple.pod.is_v4());
            Ok(())
        }
        // Another CPU was faster, or the flow is just being removed. In the latter case the next
        // packet makes it again.
        Err(Refusal::Exists) => Ok(()),
        Err(refusal) => Err(refusal.reason(DropReason::InboundFull)),
    }
}

/// Removes the flow of a tuple, if its last packet passed at `last_seen`, or in any case. Returns
/// true if it did.
#[inline(always)]
pub(crate) fn retire(tuple: &PodTuple, last_seen: u64) -> bool {
    let Some(endpoint) = entry::retire(&INBOUND, tuple, last_seen) else {
        return false;
    };
    quota::give_back_inbound(endpoint);
    stats::count(NatStat::InboundRemoved, tuple.pod.is_v4());
    true
}
