//! Datagrams in pieces: only the first one carries the ports, so what it told is kept for the
//! others.

use aya_ebpf::bindings::BPF_ANY;
use datapath_common::abi::{Datagram, DatagramKey};
use datapath_common::fault::Fault;
use datapath_common::masquerade::Opening;
use datapath_common::outcome::DropReason;

use crate::clock;
use crate::family::{Ip, Piece};
use crate::fault;
use crate::maps::FRAGMENTS;
use crate::settings;
use crate::transport::Ports;

/// How long what a first fragment told is believed, in seconds: as long as Linux waits for the rest
/// of a datagram (`IP_FRAG_TIME` in `include/net/ip.h`, and half of `IPV6_FRAG_TIMEOUT`).
const LIFETIME: u32 = 30;

/// Stands for the protocol of a datagram whose first fragment has no ports: IPv6's hop-by-hop options,
/// which no ports follow.
const PORTLESS: u8 = 0;

/// Keeps the ports that a first fragment carries. Nothing is done for another packet.
///
/// Must see the addresses as they were before translation.
#[inline(always)]
pub(crate) fn note(ip: &Ip, ports: &Ports) -> Result<(), DropReason> {
    if ip.fragment != Piece::First || fault::has(Fault::FragmentIgnored) {
        return Ok(());
    }
    let datagram = Datagram::new(
        clock::now(),
        ports.protocol,
        ports.source,
        ports.destination,
    );
    keep(ip, datagram)
}

/// Notes that a first fragment carries no ports, so that the others go the same way. Nothing is done
/// for another packet.
#[inline(always)]
pub(crate) fn note_portless(ip: &Ip) -> Result<(), DropReason> {
    if ip.fragment != Piece::First {
        return Ok(());
    }
    keep(ip, Datagram::new(clock::now(), PORTLESS, 0, 0))
}

/// Notes that a later piece of a datagram came before the first one: all of them take the host's
/// stack, which puts them in order.
#[inline(always)]
pub(crate) fn reorder(ip: &Ip) -> Result<(), DropReason> {
    keep(ip, Datagram::reordered(clock::now()))
}

#[inline(always)]
fn keep(ip: &Ip, datagram: Datagram) -> Result<(), DropReason> {
    FRAGMENTS
        .insert(key(ip), datagram, u64::from(BPF_ANY))
        .map_err(|_errno| DropReason::HelperFailed)
}

/// Whether a first piece is of a datagram of which a later one came before.
#[inline(always)]
pub(crate) fn is_reordered(ip: &Ip) -> bool {
    ip.fragment == Piece::First
        && !fault::has(Fault::ReorderedPassed)
        && find(ip).is_some_and(|datagram| datagram.reordered != 0)
}

/// Whether what [`recall`] gave are no ports.
#[inline(always)]
pub(crate) fn is_portless(ports: &Ports) -> bool {
    settings::notes_stack() && ports.protocol == PORTLESS
}

/// The ports of the datagram that a later fragment is of.
#[inline(always)]
pub(crate) fn recall(ip: &Ip) -> Option<Ports> {
    let datagram = find(ip).filter(|datagram| datagram.reordered == 0)?;
    Some(Ports {
        protocol: datagram.protocol,
        source: datagram.source_port,
        destination: datagram.destination_port,
        tcp_flags: 0,
        // It opens nothing: what the first fragment was not let through for, this is not either.
        opening: Opening::Belongs,
    })
}

/// What is known of a datagram.
#[inline(always)]
fn find(ip: &Ip) -> Option<&'static Datagram> {
    // SAFETY: when the entry makes way for another at this very moment, the ports of another
    // datagram are read, and this fragment goes where its receiver drops it.
    let datagram = unsafe { FRAGMENTS.get(key(ip)) }?;
    let is_over = clock::now().wrapping_sub(datagram.seen) > clock::seconds(LIFETIME);
    (!is_over || fault::has(Fault::FragmentForEver)).then_some(datagram)
}

#[inline(always)]
fn key(ip: &Ip) -> DatagramKey {
    let protocol = if ip.source.is_v4() { ip.protocol } else { 0 };
    let id = if fault::has(Fault::FragmentId) {
        0
    } else {
        ip.fragment_id
    };
    DatagramKey::new(ip.source, ip.destination, id, protocol)
}
