//! Serving a packet from the cache.

use aya_ebpf::bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR};
use datapath_common::checksum;
use datapath_common::counter::Program;
use datapath_common::fault::Fault;
use datapath_common::headers::{Tcp, ether_type, lanes, protocol, udp};
use datapath_common::outcome::DropReason;
use datapath_common::progress::tcp;

use super::answered::cache_answered;
use super::entry::{Entry, FAMILY, edit, exit};
use super::plain::Plain;
use super::seen::{self, Seen};
use super::sent::{self, cache_sent};
use super::{epoch, generation, is_on, keep, slot, tell};
use crate::clock;
use crate::count;
use crate::family::{Side, V4, V6};
use crate::fault;
use crate::packet::{Front, Packet};
use crate::redirect;
use crate::settings;
use crate::verdict::Code;

/// What became of a packet.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// It goes where those before it went, and has been counted.
    Redirected,
    /// It is to be looked at; what is found then may be kept.
    NotServed,
    /// It is dropped.
    Dropped(Code),
}

/// Serves a packet.
#[inline(always)]
pub(crate) fn serve(program: Program, packet: &mut Packet) -> Answer {
    if !is_on() || settings::takes_stack() {
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
            keep::forget();
            Answer::NotServed
        }
    }
}

/// The same, before anything is noted of it.
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
fn serve_ip<F: Plain>(program: Program, packet: &mut Packet, front: Front) -> Served {
    let Some(seen) = seen::look::<F>(packet, front) else {
        return Served::Not;
    };
    let Some(at) = slot(seen.hash) else {
        return Served::Not;
    };
    'known: {
        // SAFETY: the slot is this CPU's own, and no program of ours interrupts another one. Whoever is called
        // from here on has a reference of its own, and this one is not used any more then.
        let entry = unsafe { &mut *at };
        if seen.ttl <= 1 {
            return Served::Not;
        }
        if is_for::<F>(entry, &seen) && is_good(entry) {
            if seen.largest > usize::from(entry.mtu) {
                return Served::Not;
            }
            if entry.watched & seen.tcp_flags == 0 || tell::is_told(program, &seen) {
                break 'known;
            }
        } else if !gets_slot(entry, &seen) {
            return Served::Not;
        }
        // SAFETY: as above.
        let entry = unsafe { &mut *at };
        // What is never kept is not tried with each packet.
        let is_in_vain = entry.until == Entry::AWAITED;
        // The other program opens no flow that it could ask for, and has no stack left to remember this.
        let is_own = matches!(program, Program::FromEndpoint) && is_for::<F>(entry, &seen);
        keep::expect(entry, &seen, is_own);
        if is_in_vain {
            return Served::Awaited;
        }
        let made = if matches!(program, Program::FromNetwork) {
            cache_answered()
        } else {
            cache_sent(packet.skb())
        };
        match made {
            sent::MADE => {}
            sent::LOOK => return Served::Awaited,
            reason => return Served::Refused(reason),
        }
    }
    // SAFETY: as above.
    let entry = unsafe { &*at };
    match act::<F>(packet, &seen, entry) {
        Ok(()) => Served::Done(u32::from(entry.counter)),
        Err(reason) => Served::Refused(reason as u32),
    }
}

/// Whether a packet may have a slot whose entry is not its own.
///
/// A flow gets the slot with its second packet in a row that would have it: those with a single packet drive
/// nobody out, nor do two that would have it by turns. A connection, which has more than one, gets a slot at
/// once that nobody needs, and no other with what opens it.
#[inline(always)]
fn gets_slot(entry: &mut Entry, seen: &Seen) -> bool {
    let is_connection = seen.kind & !u64::from(FAMILY) == u64::from(protocol::TCP);
    let is_second = entry.candidate == seen.hash;
    if seen.tcp_flags & tcp::SYN == 0 {
        entry.candidate = seen.hash;
    }
    is_second || (is_connection && is_free(entry))
}

/// Whether an entry is of this packet's direction of its flow.
#[inline(always)]
fn is_for<F: Plain>(entry: &Entry, seen: &Seen) -> bool {
    F::is_same(&entry.key.addresses, &seen.key.addresses)
        && entry.key.place == seen.key.place
        && u64::from(entry.kind) == seen.kind
}

/// Whether nothing has changed since an entry was made.
#[inline(always)]
fn is_good(entry: &Entry) -> bool {
    clock::now() < entry.until
        && (entry.stamp.generation == generation() || fault::has(Fault::StalePolicy))
        && entry.stamp.epoch == epoch::of(entry.stamp.group)
}

/// Whether nobody needs an entry any more.
#[inline(always)]
fn is_free(entry: &Entry) -> bool {
    entry.watched & tcp::FIN == 0 || !is_good(entry)
}

/// Does to a packet what was done to those before it.
#[inline(always)]
fn act<F: Plain>(packet: &mut Packet, seen: &Seen, entry: &Entry) -> Result<(), DropReason> {
    // Helpers that may move the packet come behind everything else that is written.
    F::forward(packet, seen, entry.header_growth.into());
    if entry.exit == exit::PEER {
        let [first, second, third, ..] = entry.hop;
        seen.front.set_macs([first, second, third]);
    }
    if entry.edit != edit::NONE {
        translate::<F>(packet, seen, entry)?;
    }
    if entry.exit == exit::PEER {
        redirect::to_peer(packet, entry.device)
    } else {
        redirect::mark_done(packet);
        redirect::to_neighbour(entry.device, &entry.hop)
    }
}

/// Translates a packet, whose IP header has its new checksum already.
#[inline(always)]
fn translate<F: Plain>(packet: &mut Packet, seen: &Seen, entry: &Entry) -> Result<(), DropReason> {
    let [source_port, destination_port] = lanes(entry.key.ports());
    let from_port = if entry.edit == edit::SOURCE {
        F::replace(seen.front, Side::Source, entry.to, entry.to_port);
        source_port
    } else {
        F::replace(seen.front, Side::Destination, entry.to, entry.to_port);
        destination_port
    };
    let (sum, flags) = if entry.kind & !FAMILY == u32::from(protocol::TCP) {
        (F::TRANSPORT + Tcp::CHECKSUM, 0)
    } else {
        (F::TRANSPORT + udp::CHECKSUM, BPF_F_MARK_MANGLED_0)
    };
    // The kernel may know the sum of the whole packet. It does not change when a checksum within the
    // packet makes up for the port.
    if entry.to_port != from_port {
        let growth = checksum::growth_of_lane(from_port, entry.to_port);
        packet.update_checksum(sum, growth, flags)?;
    }
    packet.update_checksum(sum, entry.growth, BPF_F_PSEUDO_HDR | flags)
}
