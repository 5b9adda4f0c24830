//! Keeping what was decided.

use core::{hint, ptr};

use datapath_common::abi::{Addr, AddressEntry, EniEntry, PodTuple, group_of};
use datapath_common::checksum;
use datapath_common::counter::Program;
use datapath_common::masquerade::PoolPolicy;
use datapath_common::outcome::Verdict;
use datapath_common::progress::tcp;
use zerocopy::transmute;

use super::entry::{Entry, Stamp, edit, exit};
use super::seen::Seen;
use super::{entry_in, epoch, generation, is_on};
use crate::clock;
use crate::deliver;
use crate::egress;
use crate::family::Version;
use crate::maps;
use crate::redirect::NextHop;
use crate::verdict::Code;
use crate::work::{self, Parts, work};

/// The current packet on the slow path, if its outcome may be cached.
pub(crate) struct Pending {
    /// Not 0 if it may; its entry then has its key and stamp.
    is_wanted: u32,
    slot: u32,
    pub(super) now: u64,
    /// The largest IP packet that goes on the wire for it, in bytes.
    pub(super) largest: u32,
    pub(super) tcp_flags: u8,
    /// Largest packet that the owner ENI takes, in bytes, if the packet leaves the node.
    pub(super) limit: u32,
    /// The ENI of the flow that the packet is translated by.
    eni: u8,
    /// Not 0 if it is of the flow that the slot had before.
    pub(super) is_known: u8,
}

/// Where a packet was redirected to.
pub(crate) struct Target {
    exit: u8,
    /// True if the pool of the endpoint that the packet is for skips masquerade.
    skips_masquerade: bool,
    device: u32,
    mtu: u32,
    hop: NextHop,
}

impl Target {
    /// The namespace of an endpoint.
    #[inline(always)]
    pub(super) fn of(endpoint: &AddressEntry) -> Self {
        let [first, second, third]: [u32; 3] =
            transmute!([*endpoint.pod_mac(), deliver::source_mac(endpoint)]);
        Self {
            exit: exit::PEER,
            skips_masquerade: matches!(endpoint.pool(), PoolPolicy::Skip),
            device: endpoint.ifindex(),
            mtu: endpoint.mtu(),
            hop: [first, second, third, 0, 0],
        }
    }

    /// The gateway of the ENI with a number, as a target for packets of at most `limit` bytes.
    #[inline(always)]
    pub(super) fn by(
        (number, eni): (u8, &EniEntry),
        version: Version,
        limit: u32,
        now: u64,
    ) -> Self {
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

/// Change that is written into a packet.
pub(super) struct Translation {
    /// A value of [`edit`] that is not [`edit::NONE`].
    pub(super) edit: u8,
    /// The address that takes the place of the one there.
    pub(super) to: Addr,
    pub(super) to_port: u16,
    /// The ENI of the flow.
    pub(super) eni: u8,
}

/// Forgets the last packet.
#[inline(always)]
pub(super) fn forget() {
    if let Ok(work) = work() {
        // SAFETY: this CPU's own part of the work; no other reference to it exists.
        unsafe { (*work.pending()).is_wanted = 0 };
    }
}

/// Prepares the entry for a packet whose outcome may be cached. `word` is that of its group, if it
/// is known by now; if not, the entry has to [`rest_on`] a group before its flow is looked up.
/// `is_own` is true if the slot was its flow's already.
#[inline(always)]
pub(super) fn expect(
    entry: &mut Entry,
    seen: &Seen,
    (group, word): (u32, Option<u64>),
    is_own: bool,
) {
    let Ok(work) = work() else {
        return;
    };
    entry.until = Entry::AWAITED;
    put(&mut entry.key.addresses, &seen.key.addresses);
    entry.key.place = seen.key.place;
    entry.stamp = Stamp {
        generation: generation(),
        epoch: word.unwrap_or(0),
        group,
    };
    #[expect(clippy::cast_possible_truncation, reason = "a few bits")]
    let kind = seen.kind as u32;
    entry.kind = kind;
    let pending = Pending {
        is_wanted: 1,
        slot: seen.slot,
        now: clock::now(),
        largest: u32::try_from(seen.largest).unwrap_or(u32::MAX),
        tcp_flags: seen.tcp_flags,
        limit: 0,
        eni: 0,
        is_known: is_own.into(),
    };
    work::write(work.pending(), pending);
}

/// Bases a packet's outcome on this flow, which is not the one of its own addresses and ports. To
/// be called before the flow is looked up.
#[inline(always)]
pub(crate) fn rests_on(tuple: &PodTuple) {
    // Before the look-ups, over which the tuple would be kept on the stack.
    let group = hint::black_box(group_of(tuple));
    if let Some(entry) = work().ok().and_then(awaited) {
        rest_on(entry, group);
    }
}

/// Bases an entry on the flows of a group.
#[inline(always)]
pub(super) fn rest_on(entry: &mut Entry, group: u32) {
    entry.stamp.group = group;
    entry.stamp.epoch = epoch::of(group);
}

/// Notes of which ENI the flow is that a packet is translated by.
#[inline(always)]
pub(crate) fn translates(work: Parts, eni: u8) {
    // SAFETY: as in `forget`.
    unsafe { (*work.pending()).eni = eni };
}

/// Notes that a packet's FIN ends nothing, so that the program also handles the next packet.
#[inline(always)]
pub(crate) fn shows_no_end(work: Parts) {
    // SAFETY: as in `forget`.
    unsafe { (*work.pending()).tcp_flags &= !tcp::FIN };
}

/// The entry of the current packet.
#[inline(always)]
pub(super) fn awaited(work: Parts) -> Option<&'static mut Entry> {
    let pending = work::read(work.pending());
    if pending.is_wanted == 0 {
        return None;
    }
    // SAFETY: the slot is this CPU's own, and no other reference to it exists.
    entry_in(pending.slot).map(|entry| unsafe { &mut *entry })
}

/// Records that a packet leaves by the ENI with a number, and that packets of more than `limit`
/// bytes do not.
#[inline(always)]
pub(crate) fn leaves(work: Parts, eni: (u8, &EniEntry), version: Version, limit: u32) {
    let pending = work::read(work.pending());
    if pending.is_wanted != 0 {
        work::write(work.target(), Target::by(eni, version, limit, pending.now));
    }
}

/// Notes that a packet goes into the namespace of an endpoint.
#[inline(always)]
pub(crate) fn stays(endpoint: &AddressEntry) {
    if let Ok(work) = work() {
        work::write(work.target(), Target::of(endpoint));
    }
}

/// Keeps the outcome of the packet that [`super::serve`] did not serve, if it is one to keep.
#[inline(always)]
pub(crate) fn keep(program: Program, code: Code) {
    if !is_on() {
        return;
    }
    let is_local = code.is(Verdict::Local);
    let edit = if is_local || code.is(Verdict::Eni) {
        edit::NONE
    } else if code.is(Verdict::Translated) {
        edit::SOURCE
    } else if code.is(Verdict::Returned) {
        edit::DESTINATION
    } else {
        return;
    };
    let is_opened_outside = matches!(program, Program::FromNetwork) && is_local;
    cache_keep(code.slot(program), edit.into(), is_opened_outside.into());
}

/// Writes the entry. A flow that may be opened from the outside is cached only if it needs no flow
/// mark: if the pod or the remote is not masqueraded.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cache_keep(counter: u32, edit: u32, is_opened_outside: u32) -> u32 {
    let Ok(work) = work() else {
        return 0;
    };
    let Some(entry) = awaited(work) else {
        return 0;
    };
    let target = work::read(work.target());
    let (source, _) = entry.ends();
    if is_opened_outside != 0 && !target.skips_masquerade && egress::is_translated(source) {
        return 0;
    }
    let tcp_flags = work::read(work.pending()).tcp_flags;
    go(entry, counter, target, tcp_flags);
    if edit != u32::from(edit::NONE) {
        let written = work::read(work.edit());
        let translation = Translation {
            edit: (edit & 3) as u8,
            to: work::copied(&written.to),
            to_port: written.to_port,
            eni: work::read(work.pending()).eni,
        };
        translate(entry, &translation, tcp_flags);
    }
    begin(entry, work);
    1
}

/// Writes the target and the counter of the packets into the entry. The first packet has
/// `tcp_flags`.
#[inline(always)]
pub(super) fn go(entry: &mut Entry, counter: u32, target: &Target, tcp_flags: u8) {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "there are some hundred counters"
    )]
    let counter = counter as u16;
    entry.counter = counter;
    entry.device = target.device;
    entry.mtu = u16::try_from(target.mtu).unwrap_or(u16::MAX);
    entry.exit = target.exit;
    entry.edit = edit::NONE;
    put(&mut entry.hop, &target.hop);
    entry.header_growth = checksum::fold(entry.hop_growth());
    // No existing entry serves a segment that opens a connection. The flow already has the progress
    // of this packet.
    entry.watched = tcp::SYN | (tcp::FIN & !tcp_flags);
}

/// Writes the translation of the packets into the entry.
#[inline(always)]
pub(super) fn translate(entry: &mut Entry, translation: &Translation, tcp_flags: u8) {
    entry.edit = translation.edit;
    let to = translation.to.words();
    put(&mut entry.to, &to);
    entry.to_port = translation.to_port;
    entry.eni = translation.eni;
    // A flow that a SYN opens has no acknowledgement yet, unless the SYN is one
    // (`progress::inbound`).
    let is_answer = translation.edit == edit::DESTINATION && tcp_flags & tcp::ACK != 0;
    let opens = tcp_flags & tcp::SYN != 0 && !is_answer;
    entry.watched |= if opens { tcp::ACK } else { 0 };
    entry.growth = entry.growth_to(to);
    entry.header_growth = checksum::fold(checksum::add(entry.hop_growth(), entry.growth));
}

/// Makes the entry good.
#[inline(always)]
pub(super) fn begin(entry: &mut Entry, work: Parts) {
    entry.until = work::read(work.pending()).now + clock::seconds(1) / 2;
}

/// Copies words one by one: an assignment would become a call to a byte loop.
#[inline(always)]
fn put<T: Copy, const WORDS: usize>(to: &mut [T; WORDS], from: &[T; WORDS]) {
    for (to, from) in to.iter_mut().zip(from) {
        // SAFETY: a reference.
        unsafe { ptr::write_volatile(to, *from) };
    }
}
