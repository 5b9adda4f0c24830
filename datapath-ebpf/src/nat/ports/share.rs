//! Ports of a destination's reserve that each endpoint has. The reserve is used where no other port
//! is left, so a flow is counted only there.

use datapath_common::abi::{FlowKey, ShareKey};
use datapath_common::outcome::DropReason;
use datapath_common::ports::keeps_port;

use crate::base::maps::{self, SHARES};
use crate::nat::attempt::attempt;
use crate::nat::ports;
use crate::nat::tables::{Table as _, quota};
use crate::scratch::PortClaim;

/// Counts a port of the reserve for the flow of the attempt; true if it may have one.
#[inline(always)]
pub(in crate::nat) fn take() -> bool {
    ports::has_reserve() && nat_share_take() != 0
}

/// Takes back what [`take`] has counted.
#[inline(always)]
pub(in crate::nat) fn give_back_attempt() {
    let _done = nat_share_give_back();
}

/// Counts one less for the flow of a key that an endpoint had.
#[inline(always)]
pub(in crate::nat) fn give_back(key: &FlowKey, endpoint: u32) {
    if ports::in_reserve(key.port) && !keeps_port(key.protocol, endpoint) {
        remove(&ShareKey::of(key, endpoint));
    }
}

/// 1 if the flow of the attempt may have a port of the reserve, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_share_take() -> u32 {
    attempt().and_then(count).is_some().into()
}

/// Counts the flow of an attempt. The host has no share: its own ports are its own there.
#[inline(always)]
fn count(attempt: &mut PortClaim) -> Option<()> {
    let endpoint = attempt.endpoint();
    let key = ShareKey::of(&attempt.key, endpoint);
    if keeps_port(key.protocol, key.endpoint) {
        return None;
    }
    let eni = maps::eni(key.eni)?;
    let addresses = if key.remote.is_v4() {
        eni.v4()
    } else {
        eni.v6()
    };
    let most = match addresses.share {
        0 => u32::MAX,
        share => share.into(),
    };
    quota::add(&SHARES, &key, most, DropReason::NoPort).ok()
}

/// Takes back what was counted for the flow of the attempt; gives 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_share_give_back() -> u32 {
    if let Some(attempt) = attempt() {
        let endpoint = attempt.endpoint();
        remove(&ShareKey::of(&attempt.key, endpoint));
    }
    0
}

/// Decrements a count, and removes a count of zero. A flow that another CPU counts at that moment
/// can be lost: its endpoint may then have one port more.
#[inline(always)]
fn remove(key: &ShareKey) {
    if let Some(share) = SHARES.find(key)
        && quota::count_down(share) == 0
    {
        SHARES.forget(key);
    }
}
