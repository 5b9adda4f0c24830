//! Serving a packet from the cache.

use core::hint;

use aya_ebpf::bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR};
use datapath_common::checksum;
use datapath_common::counter::Program;
use datapath_common::headers::{Tcp, ether_type, lanes, protocol, udp};
use datapath_common::outcome::DropReason;
use datapath_common::progress::tcp;

use super::fill_reply::cache_answered;
use super::plain::{FastHeader, FastPacket};
use super::{fill, fill_egress, flow_update, generation, is_on, seen};
use crate::base::code::Code;
use crate::base::maps::cache_entry;
use crate::base::{clock, count};
use crate::nat::tables::epoch;
use crate::packet::family::{V4, V6};
use crate::packet::{LinearHead, Packet};
use crate::path::{record, redirect};
use crate::scratch::{AddrField, Entry, FAMILY, edit, exit};

/// The outcome of a packet.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// It goes where those before it went, and has been counted.
    Redirected,
    /// It takes the slow path; the result may be cached.
    NotServed,
    /// It is dropped.
    Dropped(Code),
}

/// Serves a packet.
#[inline(always)]
pub(crate) fn serve(program: Program, packet: &mut Packet) -> Answer {
    if !is_on() {
        return Answer::NotServed;
    }
    match serve_frame(program, packet) {
        Served::Done(counter) => {
            count::slot(counter, packet.length());
            Answer::Redirected
        }
        Served::Refused(reason) => Answer::Dropped(Code::from_register(reason)),
        Served::Awaited => Answer::NotServed,
        Served::Not => {
            fill::forget();
            Answer::NotServed
        }
    }
}

/// Result of serving a frame, before it is counted.
enum Served {
    /// It has been served: the slot of its counter.
    Done(u32),
    /// It has not; what is found out now may be kept.
    Awaited,
    /// It has not.
    Not,
    /// It is dropped: the number of the reason.
    Refused(u32),
}

#[inline(always)]
fn serve_frame(program: Program, packet: &mut Packet) -> Served {
    if packet.has_vlan_tag() || (matches!(program, Program::FromNetwork) && !packet.is_for_host()) {
        return Served::Not;
    }
    match seen::begin(packet) {
        Some((front, ether_type::IPV4)) => serve_ip::<V4>(program, packet, front),
        Some((front, ether_type::IPV6)) => serve_ip::<V6>(program, packet, front),
        Some(_) | None => Served::Not,
    }
}

#[inline(always)]
fn serve_ip<F: FastHeader>(program: Program, packet: &mut Packet, front: LinearHead) -> Served {
    let Some(seen) = seen::look::<F>(packet, front) else {
        return Served::Not;
    };
    // An early read of the group's word overlaps with the load of the entry. An answer of a flow is
    // in another group than its own tuple, and only the entry has that group.
    let early = matches!(program, Program::FromEndpoint).then(|| epoch::of(seen.group()));
    let Some(at) = cache_entry(seen.slot) else {
        return Served::Not;
    };
    if seen.ttl <= 1 {
        return Served::Not;
    }
    // SAFETY: the slot is this CPU's own, and no program of ours interrupts another one. The
    // functions that are called from here on have references of their own, and this one is not used
    // any more then.
    let entry = unsafe { &mut *at };
    let word = || early.unwrap_or_else(|| epoch::of(entry.stamp.group));
    let is_known = is_for::<F>(entry, &seen) && is_good(entry, word);
    if is_known && seen.largest > usize::from(entry.mtu) {
        return Served::Not;
    }
    let is_served =
        is_known && (entry.watched & seen.tcp_flags == 0 || flow_update::is_told(program, &seen));
    let slot = Slot {
        at,
        early,
        is_known,
    };
    if !is_served && let Err(not_served) = renew::<F>(program, packet, &seen, slot) {
        return not_served;
    }
    // SAFETY: as above.
    let entry = unsafe { &*at };
    match act::<F>(program, packet, &seen, entry) {
        Ok(()) => Served::Done(u32::from(entry.counter)),
        Err(reason) => Served::Refused(reason as u32),
    }
}

/// The slot that a packet's entry has or would have.
#[derive(Clone, Copy)]
struct Slot {
    at: *mut Entry,
    /// The word of the packet's group, if it has been read.
    early: Option<u64>,
    /// True if the entry is the packet's own, and holds.
    is_known: bool,
}

/// Makes the entry of a packet again, or requests it from the outcome of the packet.
#[inline(always)]
fn renew<F: FastHeader>(
    program: Program,
    packet: &Packet,
    seen: &FastPacket,
    slot: Slot,
) -> Result<(), Served> {
    let Slot {
        at,
        early,
        is_known,
    } = slot;
    // Most packets do not come here: theirs is a path without a jump.
    hint::cold_path();
    // SAFETY: as in `serve_ip`.
    let entry = unsafe { &mut *at };
    let group = seen.group();
    if !is_known && !gets_slot(entry, seen, group) {
        return Err(Served::Not);
    }
    // Flows that are never cached are not tried again with each packet.
    let is_in_vain = entry.until == Entry::AWAITED;
    // The other program opens no flow that it could request, and has no stack left to save this.
    let is_own = matches!(program, Program::FromEndpoint) && is_for::<F>(entry, seen);
    let of = fill::Group {
        number: group,
        word: early,
    };
    fill::expect(entry, seen, of, is_own);
    let made = if is_in_vain {
        fill_egress::LOOK
    } else if matches!(program, Program::FromNetwork) {
        cache_answered()
    } else {
        fill_egress::sent(packet.skb())
    };
    match made {
        fill_egress::MADE => Ok(()),
        fill_egress::LOOK => {
            if early.is_none() {
                // SAFETY: as in `serve_ip`.
                record::rest_on(unsafe { &mut *at }, group);
            }
            Err(Served::Awaited)
        }
        reason => Err(Served::Refused(reason)),
    }
}

/// True if a packet may have a slot whose entry is not its own.
///
/// A flow gets the slot with its second packet in a row that would have it. Flows of a single
/// packet therefore evict none, nor do two that alternate. A connection, which has more than one
/// packet, gets a free slot at once, and no other with its opening segment.
#[inline(always)]
fn gets_slot(entry: &mut Entry, seen: &FastPacket, group: u32) -> bool {
    let is_connection = seen.kind & !u64::from(FAMILY) == u64::from(protocol::TCP);
    let gets = entry.candidate == group || (is_connection && is_free(entry));
    if gets || seen.tcp_flags & tcp::SYN == 0 {
        entry.candidate = group;
    }
    gets
}

/// True if an entry is of this packet's direction of its flow.
#[inline(always)]
fn is_for<F: FastHeader>(entry: &Entry, seen: &FastPacket) -> bool {
    F::is_same(&entry.key.addresses, &seen.key.addresses)
        && entry.key.place == seen.key.place
        && u64::from(entry.kind) == seen.kind
}

/// True if nothing has changed since an entry was made. `word` gives that of its group.
#[inline(always)]
fn is_good(entry: &Entry, word: impl FnOnce() -> u64) -> bool {
    clock::now() < entry.until
        && entry.stamp.generation == generation()
        && entry.stamp.epoch == word()
}

/// True if no flow needs an entry any more.
#[inline(always)]
fn is_free(entry: &Entry) -> bool {
    entry.watched & tcp::FIN == 0 || !is_good(entry, || epoch::of(entry.stamp.group))
}

/// Applies the entry to a packet. A packet from the VPC is delivered to a pod, and only its
/// destination can be translated. For a packet of a pod that is the source, unless it stays on the
/// node.
#[inline(always)]
fn act<F: FastHeader>(
    program: Program,
    packet: &mut Packet,
    seen: &FastPacket,
    entry: &Entry,
) -> Result<(), DropReason> {
    // Helpers that may move the packet are called after all other writes.
    F::forward(packet, seen, entry.header_growth);
    if matches!(program, Program::FromNetwork) {
        set_macs(seen, entry);
        if entry.edit != edit::NONE {
            translate::<F>(packet, seen, entry, AddrField::Destination)?;
        }
        return redirect::to_peer(packet, entry.device);
    }
    if entry.exit == exit::PEER {
        set_macs(seen, entry);
        return redirect::to_peer(packet, entry.device);
    }
    let is_framed = entry.exit == exit::FRAME;
    if is_framed {
        set_macs(seen, entry);
    }
    if entry.edit != edit::NONE {
        translate::<F>(packet, seen, entry, AddrField::Source)?;
    }
    redirect::mark_done(packet);
    if is_framed {
        return redirect::framed(entry.device);
    }
    hint::cold_path();
    redirect::to_neighbour(entry.device, &entry.hop)
}

/// Writes the MACs that a packet has in an endpoint's namespace, or as it leaves for a gateway.
#[inline(always)]
fn set_macs(seen: &FastPacket, entry: &Entry) {
    let [first, second, third, ..] = entry.hop;
    seen.front.set_macs([first, second, third]);
}

/// Translates one side of a packet, whose IP header has its new checksum already.
#[inline(always)]
fn translate<F: FastHeader>(
    packet: &mut Packet,
    seen: &FastPacket,
    entry: &Entry,
    side: AddrField,
) -> Result<(), DropReason> {
    let [source_port, destination_port] = lanes(entry.key.ports());
    let from_port = match side {
        AddrField::Source => source_port,
        AddrField::Destination => destination_port,
    };
    F::replace(seen.front, side, entry.to, entry.to_port);
    let (sum, flags) = sum_of::<F>(entry);
    // The kernel may have the sum of the whole packet. It does not change if a checksum within the
    // packet compensates for the port.
    if entry.to_port != from_port {
        hint::cold_path();
        let growth = checksum::growth_of_lane(from_port, entry.to_port);
        packet.update_checksum(sum, growth, flags)?;
    }
    packet.update_checksum(sum, entry.growth, BPF_F_PSEUDO_HDR | flags)
}

/// Offset of the checksum of TCP or UDP, and the flags for its update. They are computed from one
/// bit of the protocol's number, since a condition would be a jump.
#[inline(always)]
fn sum_of<F: FastHeader>(entry: &Entry) -> (usize, u32) {
    /// Of UDP's number, and not of TCP's.
    const IS_UDP: u32 = 4;
    const {
        assert!(protocol::UDP >> IS_UDP & 1 == 1 && protocol::TCP >> IS_UDP & 1 == 0);
        assert!(Tcp::CHECKSUM > udp::CHECKSUM);
    }
    let is_udp = entry.kind >> IS_UDP & 1;
    let nearer = is_udp as usize * (Tcp::CHECKSUM - udp::CHECKSUM);
    let flags = is_udp * BPF_F_MARK_MANGLED_0;
    (F::TRANSPORT + Tcp::CHECKSUM - nearer, flags)
}
