//! Flow counts of the endpoints, so that none of them uses up the shared room.

use core::ptr;

use aya_ebpf::Global;
use datapath_common::abi::{
    FlowQuotas, HOST, Quota, SharedTable, endpoint_of_quota, inbound_quota,
};
use datapath_common::outcome::DropReason;

use super::Table;
use super::lock::{lock, unlock};
use super::room;
use crate::base::maps::{LEND, QUOTA};

/// Most translated flows of one endpoint.
#[unsafe(no_mangle)]
static FLOWS_PER_ENDPOINT: Global<u32> = Global::new(FlowQuotas::DEFAULT.endpoint);

/// Most inbound flows of one endpoint.
#[unsafe(no_mangle)]
static INBOUND_PER_ENDPOINT: Global<u32> = Global::new(FlowQuotas::DEFAULT.inbound);

/// Most flows of the host.
#[unsafe(no_mangle)]
static FLOWS_OF_HOST: Global<u32> = Global::new(FlowQuotas::DEFAULT.host);

/// Counts one translated flow more, unless the endpoint has as many as it may have.
#[inline(always)]
pub(in crate::nat) fn take(endpoint: u32, is_v4: bool) -> Result<(), DropReason> {
    let table = SharedTable::flows(is_v4);
    let most = if endpoint == HOST {
        FLOWS_OF_HOST.load()
    } else {
        FLOWS_PER_ENDPOINT.load()
    };
    let exceeded = DropReason::QuotaExceeded;
    add(&QUOTA, &endpoint, most, exceeded).or_else(|reason| borrow(endpoint, table, reason))?;
    if room::take(table, endpoint) {
        return Ok(());
    }
    remove(endpoint);
    Err(DropReason::FlowsFull)
}

/// Counts one inbound flow more, likewise.
#[inline(always)]
pub(in crate::nat) fn take_inbound(endpoint: u32) -> Result<(), DropReason> {
    let most = INBOUND_PER_ENDPOINT.load();
    let exceeded = DropReason::InboundQuotaExceeded;
    let key = inbound_quota(endpoint);
    add(&QUOTA, &key, most, exceeded)
        .or_else(|reason| borrow(key, SharedTable::Inbound, reason))?;
    if room::take(SharedTable::Inbound, endpoint) {
        return Ok(());
    }
    remove(inbound_quota(endpoint));
    Err(DropReason::InboundFull)
}

/// Counts one translated flow less.
#[inline(always)]
pub(in crate::nat) fn give_back(endpoint: u32, is_v4: bool) {
    room::give_back(SharedTable::flows(is_v4), endpoint);
    remove(endpoint);
}

/// Counts one inbound flow less.
#[inline(always)]
pub(in crate::nat) fn give_back_inbound(endpoint: u32) {
    room::give_back(SharedTable::Inbound, endpoint);
    remove(inbound_quota(endpoint));
}

/// Counts one more beyond the quota of an endpoint, by what its table lends, or refuses with the
/// reason.
#[inline(always)]
fn borrow(key: u32, table: SharedTable, reason: DropReason) -> Result<(), DropReason> {
    if nat_quota_borrow(key, table as u32) != 0 {
        Ok(())
    } else {
        Err(reason)
    }
}

/// 1 if an endpoint at its quota has got one flow more of what a table lends, or 0. The host
/// borrows nothing.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_quota_borrow(key: u32, table: u32) -> u32 {
    let lent = LEND.get(table).copied().unwrap_or(0);
    if lent == 0 || key == HOST {
        return 0;
    }
    let quota = if key == endpoint_of_quota(key) {
        FLOWS_PER_ENDPOINT.load()
    } else {
        INBOUND_PER_ENDPOINT.load()
    };
    let most = quota.saturating_add(lent);
    u32::from(add(&QUOTA, &key, most, DropReason::QuotaExceeded).is_ok())
}

/// Counts one more for a key, unless it has as many as it may have.
#[inline(always)]
pub(in crate::nat) fn add<K>(
    table: &impl Table<K, Quota>,
    key: &K,
    most: u32,
    exceeded: DropReason,
) -> Result<(), DropReason> {
    let quota = table.find(key).or_else(|| {
        // Another CPU may be faster.
        let _exists = table.claim(key, &Quota::NONE);
        table.find(key)
    });
    let quota = quota.ok_or(DropReason::HelperFailed)?;
    // SAFETY: `quota` is a map's value, which stays readable and writable while the program runs.
    let has_room = unsafe {
        let count = &raw mut (*quota).flows;
        lock(&raw mut (*quota).lock);
        let flows = ptr::read_volatile(count);
        if flows < most {
            ptr::write_volatile(count, flows.wrapping_add(1));
        }
        unlock(&raw mut (*quota).lock);
        flows < most
    };
    if has_room { Ok(()) } else { Err(exceeded) }
}

#[inline(always)]
fn remove(key: u32) {
    let _done = quota_give_back(key);
}

/// Counts one less; gives 0. There is nothing to count down where user space has removed the entry
/// since, and the device's index has a new owner.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn quota_give_back(key: u32) -> u32 {
    let Some(quota) = QUOTA.find(&key) else {
        return 0;
    };
    count_down(quota);
    0
}

/// Counts one less; gives how many are left.
#[inline(always)]
pub(in crate::nat) fn count_down(quota: *mut Quota) -> u32 {
    // SAFETY: as for `add`.
    unsafe {
        let count = &raw mut (*quota).flows;
        lock(&raw mut (*quota).lock);
        let left = ptr::read_volatile(count).saturating_sub(1);
        ptr::write_volatile(count, left);
        unlock(&raw mut (*quota).lock);
        left
    }
}
