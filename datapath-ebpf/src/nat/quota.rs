//! How many translated flows each endpoint has, so that none of them uses up what all share.

use core::ptr;

use aya_ebpf::Global;
use datapath_common::abi::{DEFAULT_FLOWS_PER_ENDPOINT, Quota};
use datapath_common::fault::Fault;
use datapath_common::outcome::DropReason;

use super::lock::{lock, unlock};
use super::tables::Table as _;
use crate::fault;
use crate::maps::QUOTA;

#[unsafe(no_mangle)]
static FLOWS_PER_ENDPOINT: Global<u32> = Global::new(DEFAULT_FLOWS_PER_ENDPOINT);

/// The endpoint that is the host. It has no quota, because it must not lose a packet to a pod.
pub(crate) const HOST: u32 = 0;

/// Counts one flow more, unless the endpoint has as many as it may have.
#[inline(always)]
pub(super) fn take(endpoint: u32) -> Result<(), DropReason> {
    let quota = QUOTA.find(&endpoint).or_else(|| {
        // Another CPU may be faster.
        let _exists = QUOTA.claim(&endpoint, &Quota::NONE);
        QUOTA.find(&endpoint)
    });
    let quota = quota.ok_or(DropReason::HelperFailed)?;
    let most = if endpoint == HOST {
        u32::MAX
    } else {
        FLOWS_PER_ENDPOINT.load()
    };
    // SAFETY: `quota` is a map's value, which stays readable and writable while the program runs.
    let has_room = unsafe {
        let count = &raw mut (*quota).flows;
        lock(&raw mut (*quota).lock);
        let flows = ptr::read_volatile(count);
        if flows < most {
            let one = u32::from(!fault::has(Fault::QuotaNotCounted));
            ptr::write_volatile(count, flows.wrapping_add(one));
        }
        unlock(&raw mut (*quota).lock);
        flows < most
    };
    if has_room {
        Ok(())
    } else {
        Err(DropReason::QuotaExceeded)
    }
}

/// Counts one flow less. There is none to count where user space has removed the entry since, and
/// the device's index has a new owner.
#[inline(always)]
pub(super) fn give_back(endpoint: u32) {
    let Some(quota) = QUOTA.find(&endpoint) else {
        return;
    };
    // SAFETY: as for `take`.
    unsafe {
        let count = &raw mut (*quota).flows;
        lock(&raw mut (*quota).lock);
        ptr::write_volatile(count, ptr::read_volatile(count).saturating_sub(1));
        unlock(&raw mut (*quota).lock);
    }
}
