//! Fragmented datagrams: only the first fragment carries the ports, so they are recorded for the
//! others.
//!
//! Few packets are fragments, so the steps for them are global functions. The IP header is the
//! stored one.

use aya_ebpf::bindings::BPF_ANY;
use datapath_common::abi::{Addr, DatagramKey};
use datapath_common::fault::Fault;
use datapath_common::masquerade::Opening;
use datapath_common::outcome::DropReason;

use crate::clock;
use crate::family::{Ip, Piece};
use crate::fault;
use crate::maps::FRAGMENTS;
use crate::settings;
use crate::transport::Ports;
use crate::work::{self, Parts, work};

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
struct Told(u64);

impl Told {
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

    /// Writes the map's value, with the present time, into this CPU's scratch, except for the
    /// remote.
    #[inline(always)]
    fn write(self, work: Parts) {
        let (protocol, source, destination) = self.ports();
        let datagram = work.told();
        // Field by field: the whole would lie on the stack first. The scratch begins as zeroes, so that
        // the reserved byte is one.
        // SAFETY: `told` is a part of this CPU's scratch.
        unsafe {
            (*datagram).seen = clock::now();
            (*datagram).source_port = source;
            (*datagram).destination_port = destination;
            (*datagram).protocol = protocol;
            (*datagram).reordered = self.bit(Self::CAME_LATER);
            (*datagram).is_error = self.bit(Self::ERROR);
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
pub(crate) fn note(ip: &Ip, ports: &Ports) -> Result<(), DropReason> {
    if ip.fragment != Piece::First || fault::has(Fault::FragmentIgnored) {
        return Ok(());
    }
    keep(Told::first(ports.protocol, ports.source, ports.destination))
}

/// Keeps the flow that the first piece of an ICMP error is about, which quotes what was sent to the
/// outside. Nothing is done for another packet.
#[inline(always)]
pub(crate) fn note_error(ip: &Ip, work: Parts) -> Result<(), DropReason> {
    if ip.fragment != Piece::First || fault::has(Fault::ErrorPiecesIgnored) {
        return Ok(());
    }
    let inner = work::read(work.inner());
    write_remote(work, &inner.destination);
    let (source, destination) = (inner.destination_port, inner.source_port);
    keep(Told::error(inner.protocol, source, destination))
}

/// Records that a first fragment has no ports, so that the others take the same path. Does nothing
/// for other packets.
#[inline(always)]
pub(crate) fn note_portless(ip: &Ip) -> Result<(), DropReason> {
    if ip.fragment != Piece::First {
        return Ok(());
    }
    keep(Told::first(PORTLESS, 0, 0))
}

/// Notes that a later piece of a datagram came before the first one: all of them take the host's
/// stack, which puts them in order.
#[inline(always)]
pub(crate) fn reorder() -> Result<(), DropReason> {
    keep(Told::REORDERED)
}

#[inline(always)]
fn keep(told: Told) -> Result<(), DropReason> {
    work::from_number(fragment_keep(told.0))
}

/// 0, or the number of the reason why it could not be kept.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fragment_keep(told: u64) -> u32 {
    work::to_number(work().and_then(|work| {
        Told(told).write(work);
        FRAGMENTS
            .insert(key(work), work::read(work.told()), u64::from(BPF_ANY))
            .map_err(|_errno| DropReason::HelperFailed)
    }))
}

/// True if a first piece is of a datagram of which a later one came before.
#[inline(always)]
pub(crate) fn is_reordered(ip: &Ip) -> bool {
    ip.fragment == Piece::First
        && !fault::has(Fault::ReorderedPassed)
        && Told(fragment_told()).is_reordered()
}

/// True if what [`recall`] gave are no ports.
#[inline(always)]
pub(crate) fn is_portless(ports: &Ports) -> bool {
    settings::notes_stack() && ports.protocol == PORTLESS
}

/// The ports of the datagram that a later fragment is of.
#[inline(always)]
pub(crate) fn recall() -> Option<Ports> {
    let told = Told(fragment_told());
    let has_ports = told.is_something() && !told.is_reordered() && !told.is_error();
    has_ports.then(|| later(told))
}

/// The ports of the answer to which a later fragment belongs. True if that is an ICMP error. Then
/// they are the ports of the flow that the error is about, which has that [`remote`].
#[inline(always)]
pub(crate) fn recall_answer() -> Option<(Ports, bool)> {
    let told = Told(fragment_told());
    let has_ports = told.is_something() && !told.is_reordered();
    has_ports.then(|| (later(told), told.is_error()))
}

/// Saves the remote for [`remote`], and for the map's value, where it is valid only for an error.
#[inline(always)]
fn write_remote(work: Parts, remote: &Addr) {
    // SAFETY: `told` is a part of this CPU's scratch.
    let place = unsafe { &raw mut (*work.told()).remote };
    work::write(place, work::copied(remote));
}

/// The remote of the flow that the ICMP error is about of which [`recall_answer`] found a piece.
#[inline(always)]
pub(crate) fn remote(work: Parts) -> &'static Addr {
    &work::read(work.told()).remote
}

/// The ports of a later fragment.
#[inline(always)]
fn later(told: Told) -> Ports {
    let (protocol, source, destination) = told.ports();
    Ports {
        protocol,
        source,
        destination,
        tcp_flags: 0,
        // It opens nothing: what the first fragment was not let through for, this is not either.
        opening: Opening::Belongs,
    }
}

/// Facts about a datagram. Of an ICMP error the remote is kept.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fragment_told() -> u64 {
    let told = work().ok().and_then(find);
    told.unwrap_or(Told::NOTHING).0
}

#[inline(always)]
fn find(work: Parts) -> Option<Told> {
    // SAFETY: when the entry makes way for another at this very moment, the ports of another
    // datagram are read, and this fragment goes where its receiver drops it.
    let datagram = unsafe { FRAGMENTS.get(key(work)) }?;
    let is_over = clock::now().wrapping_sub(datagram.seen) > clock::seconds(LIFETIME);
    if is_over && !fault::has(Fault::FragmentForEver) {
        return None;
    }
    if datagram.is_error != 0 {
        write_remote(work, &datagram.remote);
        return Some(Told::error(
            datagram.protocol,
            datagram.source_port,
            datagram.destination_port,
        ));
    }
    Some(if datagram.reordered != 0 {
        Told::REORDERED
    } else {
        Told::first(
            datagram.protocol,
            datagram.source_port,
            datagram.destination_port,
        )
    })
}

/// The key of the packet's datagram, in the work: the stack has no room for it.
#[inline(always)]
fn key(work: Parts) -> &'static DatagramKey {
    let ip = work::read(work.ip());
    let protocol = if ip.source.is_v4() { ip.protocol } else { 0 };
    let id = if fault::has(Fault::FragmentId) {
        0
    } else {
        ip.fragment_id
    };
    let key = DatagramKey::new(ip.source, ip.destination, id, protocol);
    work::write(work.datagram(), key);
    work::read(work.datagram())
}
