//! Keeping what was decided.

use datapath_common::abi::{AddressEntry, EniEntry, PodTuple};
use datapath_common::checksum;
use datapath_common::counter::Program;
use datapath_common::headers::lanes;
use datapath_common::outcome::{DropReason, Outcome, Verdict};

use super::entry::{Entry, FAMILY, FAMILY_V4, Key, Stamp, edit, exit};
use super::seen::{Seen, address};
use super::{epoch, is_on, slot};
use crate::clock;
use crate::egress;
use crate::family::{Family, V4, V6};
use crate::settings;
use crate::work::{self, work};

/// The packet that is being looked at, if its outcome may be kept.
pub(crate) struct Pending {
    /// Not 0 if it may.
    is_wanted: u32,
    hash: u32,
    key: Key,
    stamp: Stamp,
    now: u64,
}

/// Where a packet was redirected to.
pub(crate) struct Target {
    exit: u8,
    /// Whether the pool of the endpoint that the packet is for skips masquerade.
    skips_masquerade: bool,
    device: u32,
    mtu: u32,
    hop: [u32; 4],
}

/// Forgets the last packet.
#[inline(always)]
pub(super) fn forget() {
    if let Ok(work) = work() {
        // SAFETY: this CPU's own part of the work, of which nobody holds a reference.
        unsafe { (*work.pending()).is_wanted = 0 };
    }
}

/// Notes a packet whose outcome may be kept.
#[inline(always)]
pub(super) fn expect(seen: &Seen, now: u64, generation: u32, kind: u32) {
    let Ok(work) = work() else {
        return;
    };
    let stamp = Stamp {
        generation,
        epoch: epoch::of(seen.group),
        group: seen.group,
        kind,
    };
    let pending = Pending {
        is_wanted: 1,
        hash: seen.hash,
        key: seen.key,
        stamp,
        now,
    };
    work::write(work.pending(), pending);
}

/// Says that a packet's outcome rests on this flow, which is not the one of its own addresses and
/// ports. To be called before the flow is looked at.
#[inline(always)]
pub(crate) fn rests_on(tuple: &PodTuple) {
    let Ok(work) = work() else {
        return;
    };
    let group = epoch::group_of(tuple);
    // SAFETY: this CPU's own part of the work, of which nobody holds a reference.
    let stamp = unsafe { &mut (*work.pending()).stamp };
    stamp.group = group;
    stamp.epoch = epoch::of(group);
}

/// Notes that a packet leaves by an ENI.
#[inline(always)]
pub(crate) fn leaves<F: Family>(eni: &EniEntry) {
    target(Target {
        exit: exit::GATEWAY,
        skips_masquerade: false,
        device: eni.ifindex(),
        mtu: eni.mtu(),
        hop: F::addresses(eni).gateway.words(),
    });
}

/// Notes that a packet goes into the namespace of an endpoint.
#[inline(always)]
pub(crate) fn stays(endpoint: &AddressEntry) {
    let [a, b, c, d, e, f] = *endpoint.pod_mac();
    let [g, h, i, j, k, l] = *endpoint.host_mac();
    target(Target {
        exit: exit::PEER,
        skips_masquerade: endpoint.skips_masquerade(),
        device: endpoint.ifindex(),
        mtu: endpoint.mtu(),
        hop: [
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, g, h]),
            u32::from_ne_bytes([i, j, k, l]),
            0,
        ],
    });
}

#[inline(always)]
fn target(target: Target) {
    if let Ok(work) = work() {
        work::write(work.target(), target);
    }
}

/// Keeps the outcome of the packet that [`super::serve`] did not serve, if it is one to keep.
#[inline(always)]
pub(crate) fn keep(program: Program, result: &Result<Verdict, DropReason>) {
    if !is_on() || settings::takes_stack() {
        return;
    }
    let (verdict, edit) = match *result {
        Ok(verdict @ (Verdict::Local | Verdict::Eni)) => (verdict, edit::NONE),
        Ok(verdict @ Verdict::Translated) => (verdict, edit::SOURCE),
        Ok(verdict @ Verdict::Returned) => (verdict, edit::DESTINATION),
        Ok(_) | Err(_) => return,
    };
    let is_opened_outside =
        matches!(program, Program::FromNetwork) && matches!(verdict, Verdict::Local);
    let counter = program.slot(Outcome::Passed(verdict));
    cache_keep(counter, edit.into(), is_opened_outside.into());
}

/// Writes the entry. What may be opened from the outside is kept only where nothing would be noted of
/// it: towards a pod that is not masqueraded, or from where masquerade does not go.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cache_keep(counter: u32, edit: u32, is_opened_outside: u32) -> u32 {
    let Ok(work) = work() else {
        return 0;
    };
    // SAFETY: this CPU's own part of the work, of which nobody holds a reference.
    let pending = unsafe { &mut *work.pending() };
    if pending.is_wanted == 0 {
        return 0;
    }
    pending.is_wanted = 0;
    let target = work::read(work.target());
    let is_v4 = pending.stamp.kind & FAMILY == FAMILY_V4;
    let (source, destination) = (
        address(pending.key.source),
        address(pending.key.destination),
    );
    if is_opened_outside != 0 && !target.skips_masquerade {
        let is_noted = if is_v4 {
            egress::is_translated::<V4>(source)
        } else {
            egress::is_translated::<V6>(source)
        };
        if is_noted {
            return 0;
        }
    }
    let Some(entry) = slot(pending.hash) else {
        return 0;
    };
    let ports = lanes(pending.key.ports());
    let (from, from_port) = if edit == u32::from(edit::SOURCE) {
        (source, ports[0])
    } else {
        (destination, ports[1])
    };
    let (to, to_port) = if edit == u32::from(edit::NONE) {
        (from, from_port)
    } else {
        let edit = work::read(work.edit());
        (edit.to, edit.to_port)
    };
    let value = Entry {
        key: pending.key,
        stamp: pending.stamp,
        until: pending.now + clock::seconds(1) / 2,
        counter,
        device: target.device,
        mtu: target.mtu,
        exit: target.exit,
        edit: (edit & 3) as u8,
        to_port,
        to: to.words(),
        growth: checksum::growth(from.words(), to.words()),
        candidate: pending.hash,
        hop: target.hop,
    };
    work::write(entry, value);
    1
}
