//! Packets that the VPC delivers to a translation address: replies to translated flows, and packets
//! of the host.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{AddressEntry, FlowKey, FragmentRing, PodTuple, TransportAddr};
use datapath_common::outcome::{DropReason, Verdict};
use datapath_common::progress::{self, Ending};

use super::deliver::{self, Arrival, Ingress};
use super::record;
use crate::base::code::Code;
use crate::base::maps;
use crate::nat::{self, Inside, ending};
use crate::packet::rewrite::{Translation, rewrite};
use crate::packet::transport::{self, Transport};
use crate::packet::{Packet, fragment, icmp_error};
use crate::scratch::{self, AddrField, FragmentKind, Ports, ScratchRef, scratch};

/// Translates an answer of a translated flow back, for the ENI with this number. All other packets
/// are for the host's own sockets. Uses the saved IP header. Returns the number of the packet's
/// outcome.
#[inline(always)]
pub(crate) fn decided(packet: &Packet, eni: u8) -> u32 {
    answer(packet.skb(), eni.into())
}

/// The number of what became of a packet.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "`decided` gives a byte")]
extern "C" fn answer(skb: *mut __sk_buff, eni: u32) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    Code::of(translate(&mut packet, eni as u8)).to_register()
}

/// Packet to translate back.
enum Answer {
    /// The packet.
    Packet(Ports),
    /// The packet that it quotes, an ICMP error.
    Quoted,
}

/// An answer, and where it goes.
struct Found {
    answer: Answer,
    inside: Inside,
    /// The port of the flow on the outside, as it lies in the packet.
    port: u16,
}

#[inline(always)]
fn translate(packet: &mut Packet, eni: u8) -> Result<Verdict, DropReason> {
    let scratch = scratch()?;
    let ip = scratch::read(scratch.ip());
    // The cloud delivers to the ENI that has the address.
    if !is_by_eni(packet.ifindex(), eni) {
        return Ok(Verdict::NotForPod);
    }
    let Some(found) = find(packet, scratch, eni)? else {
        return Ok(Verdict::NotForPod);
    };
    let inside = found.inside;
    end(packet, scratch, &found);
    // The two branches end separately, instead of with a pointer that may be null: old verifiers
    // (Linux 5.10) lose track of that.
    if inside.is_host() {
        if inside.port != found.port {
            let inward = Inward {
                to: TransportAddr::new(ip.destination, inside.port),
                outer: None,
            };
            edit(packet, scratch, &found.answer, inward)?;
        }
        return Ok(Verdict::HostReturned);
    }
    let pod = endpoint(inside)?;
    record::translates(scratch, eni);
    let inward = Inward {
        to: TransportAddr::new(inside.pod, inside.port),
        outer: Some(AddrField::Destination),
    };
    edit(packet, scratch, &found.answer, inward)?;
    let ingress = Ingress {
        eni,
        arrival: Arrival::of(inside),
    };
    deliver::into_pod(packet, ip, pod, ingress)
}

/// Notes what a segment says that ends its connection, if who has the connection knows it.
#[inline(always)]
fn end(packet: &Packet, scratch: ScratchRef, found: &Found) {
    let Answer::Packet(ports) = &found.answer else {
        return;
    };
    if !progress::ends(ports.tcp_flags) {
        return;
    }
    let inside = &found.inside;
    let namespace = if inside.is_host() {
        ending::OF_HOST
    } else {
        endpoint(found.inside).map_or(0, AddressEntry::namespace)
    };
    let tuple = PodTuple::new(
        ports.protocol,
        TransportAddr::new(inside.pod, inside.port),
        TransportAddr::new(
            scratch::copied(&scratch::read(scratch.ip()).source),
            ports.source,
        ),
    );
    nat::ask(scratch, tuple, nat::asked_for(scratch), ports.tcp_flags);
    if ending::end_answered(packet, namespace) != Ending::Believed {
        record::shows_no_end(scratch);
    }
}

/// True if a device is that of an ENI, by its number.
#[inline(always)]
pub(crate) fn is_by_eni(ifindex: u32, eni: u8) -> bool {
    maps::eni(eni).is_some_and(|entry| entry.ifindex() == ifindex)
}

/// The inside of a flow, as an answer gets it.
#[derive(Clone, Copy)]
struct Inward {
    to: TransportAddr,
    /// The side of an ICMP error itself that gets the address as well.
    outer: Option<AddrField>,
}

/// Writes the inside of the flow into an answer, or into the packet that it quotes.
#[inline(always)]
fn edit(
    packet: &mut Packet,
    scratch: ScratchRef,
    answer: &Answer,
    inward: Inward,
) -> Result<(), DropReason> {
    let Inward { to, outer } = inward;
    match answer {
        Answer::Packet(ports) => {
            let side = AddrField::Destination;
            rewrite(packet, scratch, ports, Translation { side, to })
        }
        Answer::Quoted => {
            let side = AddrField::Source;
            icmp_error::rewrite_error(packet, scratch, Translation { side, to }, outer)
        }
    }
}

/// The flow that a packet answers, or an ICMP error is about: what that quotes we have sent.
#[inline(always)]
fn find(packet: &mut Packet, scratch: ScratchRef, eni: u8) -> Result<Option<Found>, DropReason> {
    let ip = scratch::read(scratch.ip());
    let mut is_error = false;
    let mut ports = match ip.fragment {
        FragmentKind::Whole | FragmentKind::First => match transport::read(packet, scratch) {
            Ok(Transport::Ports(ports)) => ports,
            Ok(Transport::Error) => {
                let found = quoted(packet, scratch, eni);
                if let Some(found) = &found {
                    let ring = FragmentRing::received(found.inside.endpoint);
                    fragment::note_error(ip, scratch, ring)?;
                }
                return Ok(found);
            }
            Ok(Transport::None) | Err(_) => return Ok(None),
        },
        FragmentKind::Later => match fragment::recall_answer() {
            Some((ports, is_of_error)) => {
                is_error = is_of_error;
                ports
            }
            None => return Ok(None),
        },
    };
    let (remote, port) = (ports.source, ports.destination);
    if !nat::in_range(port) {
        return Ok(None);
    }
    let source = if is_error {
        fragment::remote(scratch)
    } else {
        &ip.source
    };
    let key = FlowKey::new(
        eni,
        ports.protocol,
        TransportAddr::new(scratch::copied(source), remote),
        port,
    );
    let key = kept(scratch, key);
    let flow = if is_error {
        // Of a later piece of an error, only the IP header is to be edited.
        ports.protocol = fragment::PORTLESS;
        nat::peek_answered(key)
    } else {
        nat::answered(key, ports.tcp_flags, record::rests_on)
    };
    let Some(inside) = flow else {
        return Ok(None);
    };
    fragment::note(ip, &ports, FragmentRing::received(inside.endpoint))?;
    Ok(Some(Found {
        answer: Answer::Packet(ports),
        inside,
        port,
    }))
}

/// The flow that an ICMP error is about.
#[inline(always)]
fn quoted(packet: &Packet, scratch: ScratchRef, eni: u8) -> Option<Found> {
    let ip = scratch::read(scratch.ip());
    let inner = icmp_error::inner(packet, scratch).ok().flatten()?;
    let port = inner.source_port;
    if inner.source != ip.destination || !nat::in_range(port) {
        return None;
    }
    let key = FlowKey::new(
        eni,
        inner.protocol,
        TransportAddr::new(scratch::copied(&inner.destination), inner.destination_port),
        port,
    );
    let inside = nat::peek_answered(kept(scratch, key))?;
    Some(Found {
        answer: Answer::Quoted,
        inside,
        port,
    })
}

/// A key that lies in the scratch space: the stack has no room for it.
#[inline(always)]
fn kept(scratch: ScratchRef, key: FlowKey) -> &'static FlowKey {
    scratch::write(scratch.flow(), key);
    scratch::read(scratch.flow())
}

/// The endpoint whose flow it is. The next one with the address has no part in it.
#[inline(always)]
pub(crate) fn endpoint(inside: Inside) -> Result<&'static AddressEntry, DropReason> {
    maps::address(&inside.pod)
        .filter(|entry| entry.is_endpoint())
        .filter(|entry| entry.identity() == inside.endpoint)
        .ok_or(DropReason::NoEndpoint)
}
