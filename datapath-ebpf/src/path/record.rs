//! The outcome of a packet, recorded for the flow cache while the packet takes the slow path.

use core::hint;

use datapath_common::abi::{AddressEntry, EniEntry, PodTuple, group_of};
use datapath_common::masquerade::PoolPolicy;
use datapath_common::progress::tcp;
use zerocopy::transmute;

use super::redirect;
use crate::base::maps::{self, cache_entry};
use crate::nat::tables::epoch;
use crate::scratch::{self, Entry, RedirectTarget, ScratchRef, Version, exit, scratch};

/// An ENI by which a packet leaves.
#[derive(Clone, Copy)]
pub(crate) struct ExitEni<'a> {
    pub(crate) number: u8,
    pub(crate) entry: &'a EniEntry,
}

impl RedirectTarget {
    /// The namespace of an endpoint.
    #[inline(always)]
    pub(crate) fn of(endpoint: &AddressEntry) -> Self {
        let [first, second, third]: [u32; 3] =
            transmute!([*endpoint.pod_mac(), redirect::source_mac(endpoint)]);
        Self {
            exit: exit::PEER,
            skips_masquerade: matches!(endpoint.pool(), PoolPolicy::Skip),
            device: endpoint.ifindex(),
            mtu: endpoint.mtu(),
            hop: [first, second, third, 0, 0],
        }
    }

    /// The gateway of an ENI, as a target for packets of at most `limit` bytes.
    #[inline(always)]
    pub(crate) fn by(exit: ExitEni<'_>, version: Version, limit: u32, now: u64) -> Self {
        let ExitEni { number, entry: eni } = exit;
        let device = eni.ifindex();
        let gateway = maps::gateway(number, matches!(version, Version::V4))
            .filter(|gateway| gateway.ifindex == device && now < gateway.until);
        let (exit, hop) = match gateway {
            Some(gateway) => {
                let [first, second, third]: [u32; 3] = transmute!(gateway.macs);
                (exit::FRAME, [first, second, third, 0, 0])
            }
            None => (exit::GATEWAY, version.next_hop(eni)),
        };
        Self {
            exit,
            skips_masquerade: false,
            device,
            mtu: limit,
            hop,
        }
    }
}

/// Bases a packet's outcome on this flow, which is not the one of its own addresses and ports. To
/// be called before the flow is looked up.
#[inline(always)]
pub(crate) fn rests_on(tuple: &PodTuple) {
    // Before the look-ups, over which the tuple would be kept on the stack.
    let group = hint::black_box(group_of(tuple));
    if let Some(entry) = scratch().ok().and_then(awaited) {
        rest_on(entry, group);
    }
}

/// Bases an entry on the flows of a group.
#[inline(always)]
pub(crate) fn rest_on(entry: &mut Entry, group: u32) {
    entry.stamp.group = group;
    entry.stamp.epoch = epoch::of(group);
}

/// Notes of which ENI the flow is that a packet is translated by.
#[inline(always)]
pub(crate) fn translates(scratch: ScratchRef, eni: u8) {
    // SAFETY: this CPU's own part of the scratch space; no other reference to it exists.
    unsafe { (*scratch.pending()).eni = eni };
}

/// Notes that a packet's FIN ends nothing, so that the program also handles the next packet.
#[inline(always)]
pub(crate) fn shows_no_end(scratch: ScratchRef) {
    // SAFETY: as in `translates`.
    unsafe { (*scratch.pending()).tcp_flags &= !tcp::FIN };
}

/// The entry of the current packet.
#[inline(always)]
pub(crate) fn awaited(scratch: ScratchRef) -> Option<&'static mut Entry> {
    let pending = scratch::read(scratch.pending());
    if pending.is_wanted == 0 {
        return None;
    }
    // SAFETY: the slot is this CPU's own, and no other reference to it exists.
    cache_entry(pending.slot).map(|entry| unsafe { &mut *entry })
}

/// Records that a packet leaves by an ENI, and that packets of more than `limit`
/// bytes do not.
#[inline(always)]
pub(crate) fn leaves(scratch: ScratchRef, eni: ExitEni<'_>, version: Version, limit: u32) {
    let pending = scratch::read(scratch.pending());
    if pending.is_wanted != 0 {
        scratch::write(
            scratch.target(),
            RedirectTarget::by(eni, version, limit, pending.now),
        );
    }
}

/// Notes that a packet goes into the namespace of an endpoint.
#[inline(always)]
pub(crate) fn stays(endpoint: &AddressEntry) {
    if let Ok(scratch) = scratch() {
        scratch::write(scratch.target(), RedirectTarget::of(endpoint));
    }
}
