//! Keeping what was decided.

use core::ptr;

use datapath_common::abi::Addr;
use datapath_common::checksum;
use datapath_common::counter::Program;
use datapath_common::outcome::Verdict;
use datapath_common::progress::tcp;

use super::plain::FastPacket;
use super::{generation, is_on};
use crate::base::clock;
use crate::base::code::Code;
use crate::path::record::awaited;
use crate::policy;
use crate::scratch::{self, CacheFill, Entry, RedirectTarget, ScratchRef, Stamp, edit, scratch};

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
    if let Ok(scratch) = scratch() {
        // SAFETY: this CPU's own part of the scratch space; no other reference to it exists.
        unsafe { (*scratch.pending()).is_wanted = 0 };
    }
}

/// The group of flows that an outcome depends on.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) number: u32,
    /// Its word, if it has been read.
    pub(super) word: Option<u64>,
}

/// Prepares the entry for a packet whose outcome may be cached. If the word of its group is
/// unknown, the entry has to [`rest_on`](crate::path::record::rest_on) a group before its flow is
/// looked up. `is_own` is true if the slot was its flow's already.
#[inline(always)]
pub(super) fn expect(entry: &mut Entry, seen: &FastPacket, group: Group, is_own: bool) {
    let Ok(scratch) = scratch() else {
        return;
    };
    entry.until = Entry::AWAITED;
    put(&mut entry.key.addresses, &seen.key.addresses);
    entry.key.place = seen.key.place;
    entry.stamp = Stamp {
        generation: generation(),
        epoch: group.word.unwrap_or(0),
        group: group.number,
    };
    #[expect(clippy::cast_possible_truncation, reason = "a few bits")]
    let kind = seen.kind as u32;
    entry.kind = kind;
    let pending = CacheFill {
        is_wanted: 1,
        slot: seen.slot,
        now: clock::now(),
        largest: u32::try_from(seen.largest).unwrap_or(u32::MAX),
        tcp_flags: seen.tcp_flags,
        limit: 0,
        eni: 0,
        is_known: is_own.into(),
    };
    scratch::write(scratch.pending(), pending);
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
    let Ok(scratch) = scratch() else {
        return 0;
    };
    let Some(entry) = awaited(scratch) else {
        return 0;
    };
    let target = scratch::read(scratch.target());
    let (source, _) = entry.ends();
    if is_opened_outside != 0 && !target.skips_masquerade && policy::is_translated(source) {
        return 0;
    }
    let tcp_flags = scratch::read(scratch.pending()).tcp_flags;
    go(entry, counter, target, tcp_flags);
    if edit != u32::from(edit::NONE) {
        let written = scratch::read(scratch.edit());
        let translation = Translation {
            edit: (edit & 3) as u8,
            to: scratch::copied(&written.to),
            to_port: written.to_port,
            eni: scratch::read(scratch.pending()).eni,
        };
        translate(entry, &translation, tcp_flags);
    }
    begin(entry, scratch);
    1
}

/// Writes the target and the counter of the packets into the entry. The first packet has
/// `tcp_flags`.
#[inline(always)]
pub(super) fn go(entry: &mut Entry, counter: u32, target: &RedirectTarget, tcp_flags: u8) {
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
pub(super) fn begin(entry: &mut Entry, scratch: ScratchRef) {
    entry.until = scratch::read(scratch.pending()).now + clock::seconds(1) / 2;
}

/// Copies words one by one: an assignment would become a call to a byte loop.
#[inline(always)]
fn put<T: Copy, const WORDS: usize>(to: &mut [T; WORDS], from: &[T; WORDS]) {
    for (to, from) in to.iter_mut().zip(from) {
        // SAFETY: a reference.
        unsafe { ptr::write_volatile(to, *from) };
    }
}
