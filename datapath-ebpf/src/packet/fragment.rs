//! Fragmented datagrams: only the first fragment carries the ports, so they are recorded for the
//! others.
//!
//! Few packets are fragments, so the steps for them are global functions. The IP header is the
//! stored one. A record takes a slot in a ring of its endpoint, whose key the callers pass
//! ([`sent`](datapath_common::abi::FragmentRing::sent),
//! [`received`](datapath_common::abi::FragmentRing::received)).

use aya_ebpf::bindings::BPF_ANY;
use datapath_common::abi::{Addr, DatagramKey};
use datapath_common::masquerade::FlowRole;
use datapath_common::outcome::DropReason;

use super::fragment_ring;
use crate::base::code::{from_number, to_number};
use crate::base::maps::FRAGMENTS;
use crate::base::{clock, settings};
use crate::scratch::{self, FragmentKind, Ip, Ports, ScratchRef, scratch};

/// Lifetime of a first fragment's record, in seconds.
///
/// It is as long as Linux waits for the rest of a datagram (`IP_FRAG_TIME` in `include/net/ip.h`,
/// and half of `IPV6_FRAG_TIMEOUT`).
const LIFETIME: u32 = 30;

/// Placeholder protocol of a datagram whose first fragment has no ports: IPv6's hop-by-hop options,
/// which no ports follow.
pub(crate) const PORTLESS: u8 = 0;

/// Facts about a datagram, as one register.
#[derive(Clone, Copy)]
struct FragmentRecord(u64);

impl FragmentRecord {
    /// Nothing.
    const NOTHING: Self = Self(0);
    /// A later piece came before the first one.
    const REORDERED: Self = Self(Self::SOMETHING | Self::CAME_LATER);
    const CAME_LATER: u64 = 1 << 40;
    /// An ICMP error: the ports are of the flow that it is about.
    const ERROR: u64 = 1 << 41;
    const SOMETHING: u64 = 1 << 48;

    /// The first piece had this protocol and these ports.
    #[inline(always)]
    fn first(protocol: u8, source: u16, destination: u16) -> Self {
        let ports = u64::from(source) << 16 | u64::from(destination);
        Self(Self::SOMETHING | u64::from(protocol) << 32 | ports)
    }

    #[inline(always)]
    fn is_something(self) -> bool {
        self.0 & Self::SOMETHING != 0
    }

    #[inline(always)]
    fn is_reordered(self) -> bool {
        self.0 & Self::REORDERED.0 == Self::REORDERED.0
    }

    /// Entry for an ICMP error about a flow whose answers have this protocol and these ports.
    #[inline(always)]
    fn error(protocol: u8, source: u16, destination: u16) -> Self {
        Self(Self::first(protocol, source, destination).0 | Self::ERROR)
    }

    #[inline(always)]
    fn is_error(self) -> bool {
        self.0 & Self::ERROR != 0
    }

    /// 1 where that bit is set.
    #[inline(always)]
    fn bit(self, bit: u64) -> u8 {
        u8::from(self.0 & bit != 0)
    }

    /// Writes the map's value, with the present time, into this CPU's scratch space, except for the
    /// remote.
    #[inline(always)]
    fn write(self, scratch: ScratchRef, slot: u8) {
        let (protocol, source, destination) = self.ports();
        let datagram = scratch.recorded();
        // Field by field: the whole would lie on the stack first.
        // SAFETY: `recorded` is a part of this CPU's scratch space.
        unsafe {
            (*datagram).seen = clock::now();
            (*datagram).source_port = source;
            (*datagram).destination_port = destination;
            (*datagram).protocol = protocol;
            (*datagram).reordered = self.bit(Self::CAME_LATER);
            (*datagram).is_error = self.bit(Self::ERROR);
            (*datagram).slot = slot;
        }
    }

    /// Protocol, source and destination port.
    #[inline(always)]
    fn ports(self) -> (u8, u16, u16) {
        let [d0, d1, s0, s1, protocol, ..] = self.0.to_le_bytes();
        let port = u16::from_le_bytes;
        (protocol, port([s0, s1]), port([d0, d1]))
    }
}

/// Keeps the ports that a first fragment carries. Nothing is done for another packet.
///
/// Must see the addresses as they were before translation.
#[inline(always)]
pub(crate) fn note(ip: &Ip, ports: &Ports, ring: u32) -> Result<(), DropReason> {
    if ip.fragment != FragmentKind::First {
        return Ok(());
    }
    let record = FragmentRecord::first(ports.protocol, ports.source, ports.destination);
    keep(record, ring)
}

/// Keeps the flow that the first piece of an ICMP error is about, which quotes what was sent to the
/// outside. Nothing is done for another packet.
#[inline(always)]
pub(crate) fn note_error(ip: &Ip, scratch: ScratchRef, ring: u32) -> Result<(), DropReason> {
    if ip.fragment != FragmentKind::First {
        return Ok(());
    }
    let inner = scratch::read(scratch.inner());
    write_remote(scratch, &inner.destination);
    let (source, destination) = (inner.destination_port, inner.source_port);
    let record = FragmentRecord::error(inner.protocol, source, destination);
    keep(record, ring)
}

/// Records that a first fragment has no ports, so that the others take the same path. Does nothing
/// for other packets.
#[inline(always)]
pub(crate) fn note_portless(ip: &Ip, ring: u32) -> Result<(), DropReason> {
    if ip.fragment != FragmentKind::First {
        return Ok(());
    }
    keep(FragmentRecord::first(PORTLESS, 0, 0), ring)
}

/// Notes that a later piece of a datagram came before the first one: all of them take the host's
/// stack, which puts them in order. The first such piece makes the record.
#[inline(always)]
pub(crate) fn reorder(ring: u32) -> Result<(), DropReason> {
    if FragmentRecord(fragment_told()).is_reordered() {
        return Ok(());
    }
    keep(FragmentRecord::REORDERED, ring)
}

#[inline(always)]
fn keep(record: FragmentRecord, ring: u32) -> Result<(), DropReason> {
    from_number(fragment_keep(record.0, ring))
}

/// 0, or the number of the reason why it could not be kept.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fragment_keep(record: u64, ring: u32) -> u32 {
    to_number(scratch().and_then(|scratch| {
        let datagram = key(scratch);
        let slot = fragment_ring::take(ring, datagram);
        FragmentRecord(record).write(scratch, slot);
        FRAGMENTS
            .insert(
                datagram,
                scratch::read(scratch.recorded()),
                u64::from(BPF_ANY),
            )
            .map_err(|_errno| DropReason::HelperFailed)
    }))
}

/// True if a first piece is of a datagram of which a later one came before.
#[inline(always)]
pub(crate) fn is_reordered(ip: &Ip) -> bool {
    ip.fragment == FragmentKind::First && FragmentRecord(fragment_told()).is_reordered()
}

/// True if what [`recall`] gave are no ports.
#[inline(always)]
pub(crate) fn is_portless(ports: &Ports) -> bool {
    settings::notes_stack() && ports.protocol == PORTLESS
}

/// The ports of the datagram that a later fragment is of.
#[inline(always)]
pub(crate) fn recall() -> Option<Ports> {
    let record = FragmentRecord(fragment_told());
    let has_ports = record.is_something() && !record.is_reordered() && !record.is_error();
    has_ports.then(|| later(record))
}

/// The ports of the answer to which a later fragment belongs. True if that is an ICMP error. Then
/// they are the ports of the flow that the error is about, which has that [`remote`].
#[inline(always)]
pub(crate) fn recall_answer() -> Option<(Ports, bool)> {
    let record = FragmentRecord(fragment_told());
    let has_ports = record.is_something() && !record.is_reordered();
    has_ports.then(|| (later(record), record.is_error()))
}

/// Saves the remote for [`remote`], and for the map's value, where it is valid only for an error.
#[inline(always)]
fn write_remote(scratch: ScratchRef, remote: &Addr) {
    // SAFETY: `recorded` is a part of this CPU's scratch space.
    let place = unsafe { &raw mut (*scratch.recorded()).remote };
    scratch::write(place, scratch::copied(remote));
}

/// The remote of the flow that the ICMP error is about of which [`recall_answer`] found a piece.
#[inline(always)]
pub(crate) fn remote(scratch: ScratchRef) -> &'static Addr {
    &scratch::read(scratch.recorded()).remote
}

/// The ports of a later fragment.
#[inline(always)]
fn later(record: FragmentRecord) -> Ports {
    let (protocol, source, destination) = record.ports();
    Ports {
        protocol,
        source,
        destination,
        tcp_flags: 0,
        // It opens nothing: what the first fragment was not let through for, this is not either.
        role: FlowRole::Existing,
    }
}

/// Facts about a datagram. Of an ICMP error the remote is kept.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fragment_told() -> u64 {
    let record = scratch().ok().and_then(find);
    record.unwrap_or(FragmentRecord::NOTHING).0
}

#[inline(always)]
fn find(scratch: ScratchRef) -> Option<FragmentRecord> {
    // SAFETY: when the entry gives its place to another at this very moment, the ports of another
    // datagram are read, and this fragment goes where its receiver drops it.
    let datagram = unsafe { FRAGMENTS.get(key(scratch)) }?;
    if clock::now().wrapping_sub(datagram.seen) > clock::seconds(LIFETIME) {
        return None;
    }
    if datagram.is_error != 0 {
        write_remote(scratch, &datagram.remote);
        return Some(FragmentRecord::error(
            datagram.protocol,
            datagram.source_port,
            datagram.destination_port,
        ));
    }
    Some(if datagram.reordered != 0 {
        FragmentRecord::REORDERED
    } else {
        FragmentRecord::first(
            datagram.protocol,
            datagram.source_port,
            datagram.destination_port,
        )
    })
}

/// The key of the packet's datagram, in the scratch space: the stack has no room for it.
#[inline(always)]
fn key(scratch: ScratchRef) -> &'static DatagramKey {
    let ip = scratch::read(scratch.ip());
    let protocol = if ip.source.is_v4() { ip.protocol } else { 0 };
    let key = DatagramKey::new(ip.source, ip.destination, ip.fragment_id, protocol);
    scratch::write(scratch.datagram(), key);
    scratch::read(scratch.datagram())
}
