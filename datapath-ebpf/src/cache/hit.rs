//! Serving a packet from the cache.

use aya_ebpf::bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR};
use aya_ebpf::programs::TcContext;
use datapath_common::abi::Addr;
use datapath_common::checksum;
use datapath_common::counter::Program;
use datapath_common::fault::Fault;
use datapath_common::headers::{Tcp, ether_type, lanes, protocol, udp};
use datapath_common::outcome::DropReason;

use super::entry::{Entry, FAMILY, FAMILY_V4, FAMILY_V6, edit, exit};
use super::seen::{self, Plain, Seen};
use super::{epoch, generation, is_on, keep, slot};
use crate::clock;
use crate::family::{Side, V4, V6};
use crate::fault;
use crate::mark::Mark;
use crate::packet::Packet;
use crate::redirect;
use crate::settings;

/// Serves a packet: gives the slot of its counter, or why it is dropped. `None` for one that has to be
/// looked at; what is found then may be kept.
#[inline(always)]
pub(crate) fn serve(program: Program, packet: &mut Packet) -> Option<Result<u32, DropReason>> {
    if !is_on() || settings::takes_stack() {
        return None;
    }
    let answer = match program {
        Program::FromNetwork => cache_serve_network(packet.skb()),
        Program::FromEndpoint | Program::ToNetwork | Program::ToEndpoint => {
            cache_serve_endpoint(packet.skb())
        }
    };
    match answer {
        NOT_SERVED => None,
        HELPER_FAILED => Some(Err(DropReason::HelperFailed)),
        TRUNCATED => Some(Err(DropReason::Truncated)),
        counter => Some(Ok(counter)),
    }
}

// Answers of the functions below; all others are slots of counters.
const NOT_SERVED: u32 = u32::MAX;
const HELPER_FAILED: u32 = u32::MAX - 1;
const TRUNCATED: u32 = u32::MAX - 2;

/// The slot of the counter of what a pod sends.
///
/// A function, because the stack of a program's deepest chain of calls has no room for what it keeps
/// there.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cache_serve_endpoint(skb: *mut __sk_buff) -> u32 {
    answer(Program::FromEndpoint, skb)
}

/// The slot of the counter of what an ENI receives.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cache_serve_network(skb: *mut __sk_buff) -> u32 {
    answer(Program::FromNetwork, skb)
}

#[inline(always)]
fn answer(program: Program, skb: *mut __sk_buff) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    match serve_frame(program, &mut packet) {
        Served::Done(Ok(counter)) => counter,
        Served::Done(Err(DropReason::Truncated)) => TRUNCATED,
        Served::Done(Err(_)) => HELPER_FAILED,
        Served::Awaited => NOT_SERVED,
        Served::Not => {
            keep::forget();
            NOT_SERVED
        }
    }
}

/// What became of a packet.
enum Served {
    /// It has been served: the slot of its counter, or why it is dropped.
    Done(Result<u32, DropReason>),
    /// It has not; what is found out now may be kept.
    Awaited,
    /// It has not.
    Not,
}

#[inline(always)]
fn serve_frame(program: Program, packet: &mut Packet) -> Served {
    if packet.has_vlan_tag() || (matches!(program, Program::FromNetwork) && !packet.is_for_host()) {
        return Served::Not;
    }
    match seen::ether_type_of(packet) {
        Some(ether_type::IPV4) => serve_ip::<V4>(packet),
        Some(ether_type::IPV6) => serve_ip::<V6>(packet),
        Some(_) | None => Served::Not,
    }
}

#[inline(always)]
fn serve_ip<F: Plain>(packet: &mut Packet) -> Served {
    let Some(seen) = seen::look::<F>(packet) else {
        return Served::Not;
    };
    let Some(entry) = slot(seen.hash) else {
        return Served::Not;
    };
    let (now, generation) = (clock::now(), generation());
    // SAFETY: the slot is this CPU's own, and no program of ours interrupts another one.
    let entry = unsafe { &mut *entry };
    if is_for::<F>(entry, &seen) && is_good(entry, now, generation) {
        return if seen.ttl > 1 && seen.largest <= entry.mtu {
            Served::Done(act::<F>(packet, entry).map(|()| entry.counter))
        } else {
            Served::Not
        };
    }
    // A flow gets the slot with its second packet in a row that would have it: those with a single
    // packet drive nobody out, nor do two that would have it by turns.
    if entry.candidate == seen.hash {
        keep::expect(entry, &seen, now, generation, kind::<F>(&seen));
        Served::Awaited
    } else {
        entry.candidate = seen.hash;
        Served::Not
    }
}

/// Whether an entry is of this packet's direction of its flow.
#[inline(always)]
fn is_for<F: Plain>(entry: &Entry, seen: &Seen) -> bool {
    // The other half is the same for all IPv4 addresses, and for no IPv6 address.
    let halves = F::IS_V4
        || (entry.key.source[0] == seen.key.source[0]
            && entry.key.destination[0] == seen.key.destination[0]);
    halves
        && entry.key.source[1] == seen.key.source[1]
        && entry.key.destination[1] == seen.key.destination[1]
        && entry.key.place == seen.key.place
        && entry.stamp.kind == kind::<F>(seen)
}

#[inline(always)]
fn kind<F: Plain>(seen: &Seen) -> u32 {
    u32::from(seen.protocol) | if F::IS_V4 { FAMILY_V4 } else { FAMILY_V6 }
}

/// Whether nothing has changed since an entry was made.
#[inline(always)]
fn is_good(entry: &Entry, now: u64, generation: u32) -> bool {
    now < entry.until
        && (entry.stamp.generation == generation || fault::has(Fault::StalePolicy))
        && entry.stamp.epoch == epoch::of(entry.stamp.group)
}

/// Does to a packet what was done to those before it.
#[inline(always)]
fn act<F: Plain>(packet: &mut Packet, entry: &Entry) -> Result<(), DropReason> {
    if entry.edit != edit::NONE {
        rewrite::<F>(packet, entry)?;
    }
    F::decrement_ttl(packet)?;
    if entry.exit == exit::PEER {
        packet.set_macs(entry.hop)?;
        redirect::to_peer(packet, entry.device)
    } else {
        packet.set_mark(Mark::done());
        redirect::to_neighbour(entry.device, F::neighbour(entry.hop))
    }
}

/// Translates a packet.
#[inline(always)]
fn rewrite<F: Plain>(packet: &mut Packet, entry: &Entry) -> Result<(), DropReason> {
    let [source_port, destination_port] = lanes(entry.key.ports());
    let (side, place, from_port) = if entry.edit == edit::SOURCE {
        (Side::Source, 0, source_port)
    } else {
        (Side::Destination, 2, destination_port)
    };
    let (sum, flags) = if entry.stamp.kind & !FAMILY == u32::from(protocol::TCP) {
        (F::TRANSPORT + Tcp::CHECKSUM, 0)
    } else {
        (F::TRANSPORT + udp::CHECKSUM, BPF_F_MARK_MANGLED_0)
    };
    // The kernel may know the sum of the whole packet. It does not change when a checksum within the
    // packet makes up for the port.
    if entry.to_port != from_port {
        let growth = checksum::growth_of_lane(from_port, entry.to_port);
        packet.update_checksum(sum, growth, flags)?;
        *packet.header_mut::<[u16; 1]>(F::TRANSPORT + place)? = [entry.to_port];
    }
    packet.update_checksum(sum, entry.growth, BPF_F_PSEUDO_HDR | flags)?;
    F::set_address(packet, side, Addr::from_words(entry.to), entry.growth)
}
