//! Egress of a pod's packet: the ENI by which it leaves the node, and its source. The rules are
//! equal for packets from a pod and for those that the stack forwards for it.

mod for_cache;
mod prepare;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{Addr, EniEntry, FragmentRing, TransportAddr};
use datapath_common::masquerade::{
    Decision, FlowRole, KnownFlow, PolicyOutcome, Why, decide, rule,
};
use datapath_common::outcome::{DropReason, Verdict};

use super::record::ExitEni;
use super::stack::ForwardPath;
use super::{record, redirect};
use crate::base::code::Code;
use crate::base::{maps, settings};
use crate::nat::{self, Direction, IngressEni, Mapping};
use crate::packet::rewrite::{Translation, rewrite};
use crate::packet::transport::{self, Transport};
use crate::packet::{Packet, fragment, icmp_error};
use crate::scratch::{
    self, AddrField, EgressContext, FragmentKind, Ports, ScratchRef, Version, scratch,
};

use for_cache::open;
pub(crate) use for_cache::{EgressPolicy, SentFlow, ask, flow};
use prepare::leave_by;
pub(crate) use prepare::{leaving, prepare};

/// From where a packet comes that leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From a pod, past the stack.
    Pod,
    /// From the stack, which has done its part.
    Stack,
}

/// A packet that leaves, and from where it comes.
#[derive(Clone, Copy)]
struct Sent<'a> {
    packet: &'a Packet,
    scratch: ScratchRef,
    origin: Origin,
}

impl<'a> Sent<'a> {
    #[inline(always)]
    fn new(packet: &'a Packet, scratch: ScratchRef, origin: Origin) -> Self {
        Self {
            packet,
            scratch,
            origin,
        }
    }
}

/// Egress action for a packet.
enum Action {
    /// By the owner ENI, as it is.
    Keep(Verdict),
    /// As its flow looks from the outside.
    Translate(Ports, Mapping),
    /// As its flow looks from the outside, for an ICMP error and the packet that it quotes.
    TranslateError(Mapping),
    /// Through the host's stack.
    Take(ForwardPath),
}

/// Sends a pod's packet out that was prepared for, and whose IP header is the one that is kept.
#[inline(always)]
pub(crate) fn leave(packet: &Packet, origin: Origin) -> Code {
    Code::from_register(match origin {
        Origin::Pod => sent_by_pod(packet.skb()),
        Origin::Stack => sent_by_stack(packet.skb()),
    })
}

// There is one for each origin, so that no program contains the code for the other's packets.

/// The number of the outcome of a packet that a pod sends.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sent_by_pod(skb: *mut __sk_buff) -> u32 {
    run(skb, Origin::Pod)
}

/// The number of what became of a packet that the stack sends for a pod.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sent_by_stack(skb: *mut __sk_buff) -> u32 {
    run(skb, Origin::Stack)
}

#[inline(always)]
fn run(skb: *mut __sk_buff, origin: Origin) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    Code::of(send(&mut packet, origin)).to_register()
}

/// Sends the packet out that the scratch space is about.
#[inline(always)]
fn send(packet: &mut Packet, origin: Origin) -> Result<Verdict, DropReason> {
    let scratch = scratch()?;
    // SAFETY: this CPU's own part of the scratch space; no other reference to it exists.
    let leaving = unsafe { &mut *scratch.leaving() };
    let owner = leaving.sender.owner;
    let version = scratch::read(scratch.ip()).version;
    let (by, verdict) = match action(packet, scratch, leaving, origin)? {
        Action::Keep(verdict) => {
            let (number, entry) = (owner, eni(owner)?);
            (ExitEni { number, entry }, verdict)
        }
        Action::Translate(ports, mapping) => {
            let (entry, snat) = exit(version, mapping.eni())?;
            record::translates(scratch, mapping.eni());
            let translation = Translation {
                side: AddrField::Source,
                to: TransportAddr::new(snat, mapping.port()),
            };
            rewrite(packet, scratch, &ports, translation)?;
            let number = mapping.eni();
            (ExitEni { number, entry }, Verdict::Translated)
        }
        Action::TranslateError(mapping) => {
            let (entry, snat) = exit(version, mapping.eni())?;
            let translation = Translation {
                side: AddrField::Destination,
                to: TransportAddr::new(snat, mapping.port()),
            };
            let outer = Some(AddrField::Source);
            icmp_error::rewrite_error(packet, scratch, translation, outer)?;
            let number = mapping.eni();
            (ExitEni { number, entry }, Verdict::Translated)
        }
        Action::Take(path) => {
            // It is none that a packet of this action has.
            let verdict = path.take(packet, owner);
            return verdict.ok_or(DropReason::HelperFailed);
        }
    };
    let departure = Departure {
        eni: by,
        limit: eni(owner)?.mtu(),
        verdict,
    };
    out(packet, scratch, origin, departure)
}

/// An ENI by its number.
#[inline(always)]
fn eni(number: u8) -> Result<&'static EniEntry, DropReason> {
    maps::eni(number).ok_or(DropReason::EniNotReady)
}

/// Decides how a packet leaves.
#[inline(always)]
fn action(
    packet: &mut Packet,
    scratch: ScratchRef,
    leaving: &mut EgressContext,
    origin: Origin,
) -> Result<Action, DropReason> {
    let ip = scratch::read(scratch.ip());
    let outcome = rule(&leaving.input);
    match outcome {
        PolicyOutcome::Drop(reason) => return Err(reason),
        // No look-up where it cannot change the outcome.
        PolicyOutcome::Untranslated(_) if !nat::may_be_exempt() => {
            if !settings::notes_stack() {
                return Ok(Action::Keep(Verdict::Eni));
            }
            leaving.may_be_translated = false;
        }
        PolicyOutcome::Translated(exit) => leave_by(leaving, exit),
        PolicyOutcome::Untranslated(_) => {}
    }
    if goes_by_notes(origin) && fragment::is_reordered(ip) {
        return Ok(Action::Take(ForwardPath::Reordered));
    }
    let ring = FragmentRing::sent(leaving.sender.endpoint);
    let ports = match ip.fragment {
        FragmentKind::Whole | FragmentKind::First => {
            let read = transport::read(packet, scratch);
            if goes_by_notes(origin) && !matches!(read, Ok(Transport::Ports(_))) {
                fragment::note_portless(ip, ring)?;
            }
            match (read, outcome) {
                (Ok(Transport::Ports(ports)), _) => ports,
                (Ok(Transport::Error), _) => {
                    return error(Sent::new(packet, scratch, origin), leaving, outcome);
                }
                (Ok(Transport::None), _) => return unknown(leaving),
                // A truncated packet belongs to no translated flow. The rest of its path is not
                // ours.
                (Err(_), PolicyOutcome::Untranslated(_)) => return Ok(Action::Keep(Verdict::Eni)),
                (Err(reason), _) => return Err(reason),
            }
        }
        FragmentKind::Later => match (fragment::recall(), outcome) {
            (Some(ports), _) if fragment::is_portless(&ports) => return unknown(leaving),
            (Some(ports), _) => ports,
            (None, _) if goes_by_notes(origin) => {
                return fragment::reorder(ring).map(|()| Action::Take(ForwardPath::Reordered));
            }
            (None, PolicyOutcome::Untranslated(_)) => return Ok(Action::Keep(Verdict::Eni)),
            (None, _) => return Err(DropReason::FragmentUnknown),
        },
    };
    fragment::note(ip, &ports, ring)?;
    with_ports(Sent::new(packet, scratch, origin), leaving, ports)
}

/// True if a packet of a flow goes to conntrack, which is to see all of the flows that it has seen
/// any of.
#[inline(always)]
pub(crate) fn goes_up(mapping: Mapping, origin: Origin) -> bool {
    mapping.takes_stack() && goes_by_notes(origin)
}

/// True if a packet takes the host's stack whenever its flow has a mark. Otherwise it has passed
/// the stack already.
#[inline(always)]
fn goes_by_notes(origin: Origin) -> bool {
    settings::notes_stack() && matches!(origin, Origin::Pod)
}

/// Decides on a packet with ports, and has its flow noted if the stack carries it.
#[inline(always)]
fn with_ports(
    sent: Sent<'_>,
    leaving: &mut EgressContext,
    ports: Ports,
) -> Result<Action, DropReason> {
    let Sent {
        packet,
        scratch,
        origin,
    } = sent;
    let (ip, sender) = (scratch::read(scratch.ip()), leaving.sender);
    let tuple = nat::sent(ip, &ports);
    nat::ask(scratch, tuple, sender, ports.tcp_flags);
    let action = of_flow(sent, leaving, ports)?;
    let is_noted =
        settings::notes_stack() && matches!(origin, Origin::Stack) && !packet.is_exception();
    match action {
        Action::Keep(_) if is_noted => {
            nat::note_stack(scratch, Direction::FromPod, IngressEni::Eni(sender.owner))?;
        }
        Action::Translate(_, mapping) if is_noted => {
            nat::take_stack(mapping);
        }
        Action::Keep(_) | Action::Translate(..) | Action::TranslateError(_) | Action::Take(_) => {}
    }
    Ok(action)
}

/// Decides on a packet by its flow.
#[inline(always)]
fn of_flow(
    sent: Sent<'_>,
    leaving: &mut EgressContext,
    ports: Ports,
) -> Result<Action, DropReason> {
    let Sent {
        packet,
        scratch,
        origin,
    } = sent;
    let sender = leaving.sender;
    // A translated flow stays one, whatever the remote sends to the pod's own address, or through a
    // node port.
    if leaving.may_be_translated
        && let Some(mapping) = nat::known()
    {
        return Ok(if goes_up(mapping, origin) {
            Action::Take(ForwardPath::Stack(IngressEni::Eni(sender.owner)))
        } else {
            Action::Translate(ports, mapping)
        });
    }
    if goes_by_notes(origin)
        && let Some(eni) = nat::stack_known(Direction::FromPod)
    {
        return Ok(Action::Take(ForwardPath::Stack(eni)));
    }
    if !leaving.may_be_translated {
        return Ok(Action::Keep(Verdict::Eni));
    }
    leaving.input.role = ports.role;
    if nat::is_inbound() {
        leaving.input.flow = KnownFlow::Inbound;
    }
    match decide(&leaving.input) {
        Decision::Untranslated(Why::Inbound) => Ok(Action::Keep(Verdict::Inbound)),
        Decision::Untranslated(_) => Ok(Action::Keep(Verdict::Eni)),
        Decision::NoteInbound => {
            nat::note_inbound()?;
            Ok(Action::Keep(Verdict::Inbound))
        }
        Decision::Translate(_) => {
            let version = scratch::read(scratch.ip()).version;
            let mapping = open(packet, scratch, version, sender.policy)?;
            Ok(Action::Translate(ports, mapping))
        }
        // Its flow would have been found above.
        Decision::KnownTranslation => Err(DropReason::NoFlow),
        Decision::Drop(reason) => Err(reason),
    }
}

/// Decides on an ICMP error of a pod. It belongs to the flow of the packet that it quotes, which
/// is one that the pod received.
#[inline(always)]
fn error(
    sent: Sent<'_>,
    leaving: &mut EgressContext,
    outcome: PolicyOutcome,
) -> Result<Action, DropReason> {
    let Sent {
        packet,
        scratch,
        origin,
    } = sent;
    leaving.input.role = FlowRole::Existing;
    let inner = match (icmp_error::inner(packet, scratch), outcome) {
        (Ok(inner), _) => inner,
        // A cut quote is like a cut packet.
        (Err(_), PolicyOutcome::Untranslated(_)) => None,
        (Err(reason), _) => return Err(reason),
    };
    // A pod has no say in another's flows.
    let source = scratch::read(scratch.ip()).source;
    if let Some(inner) = inner.filter(|inner| inner.destination == source) {
        nat::ask(scratch, inner.answered(), leaving.sender, 0);
        if leaving.may_be_translated
            && let Some(mapping) = nat::peek()
        {
            return Ok(Action::TranslateError(mapping));
        }
        if goes_by_notes(origin)
            && let Some(eni) = nat::peek_stack()
        {
            return Ok(Action::Take(ForwardPath::Stack(eni)));
        }
        if leaving.may_be_translated && nat::peek_inbound() {
            leaving.input.flow = KnownFlow::Inbound;
        }
    }
    unknown(leaving)
}

/// Decides on a packet that no translated flow is known for and that opens none.
#[inline(always)]
fn unknown(leaving: &EgressContext) -> Result<Action, DropReason> {
    match decide(&leaving.input) {
        Decision::Untranslated(Why::Inbound) => Ok(Action::Keep(Verdict::Inbound)),
        Decision::Untranslated(_) => Ok(Action::Keep(Verdict::Eni)),
        Decision::Drop(reason) => Err(reason),
        Decision::NoteInbound | Decision::KnownTranslation | Decision::Translate(_) => {
            Err(DropReason::NoFlow)
        }
    }
}

/// An ENI by which translated packets leave, and the address that they carry.
#[inline(always)]
pub(crate) fn exit(version: Version, number: u8) -> Result<(&'static EniEntry, Addr), DropReason> {
    let eni = eni(number)?;
    let snat = version.addresses(eni).snat;
    if snat.is_unspecified() {
        return Err(DropReason::NoTranslationAddress);
    }
    Ok((eni, snat))
}

/// The end of a packet's way through the node.
#[derive(Clone, Copy)]
struct Departure<'a> {
    /// The ENI by which it leaves.
    eni: ExitEni<'a>,
    /// A pod's packets larger than this are not redirected.
    limit: u32,
    /// The packet's outcome, if the stack does not send it by that ENI anyway.
    verdict: Verdict,
}

/// Sends a packet out of an ENI to its gateway.
///
/// A packet that the stack sends by that ENI anyway goes on. One that it sends by another ENI is
/// misrouted, or is to leave by the primary.
#[inline(always)]
fn out(
    packet: &mut Packet,
    scratch: ScratchRef,
    origin: Origin,
    departure: Departure<'_>,
) -> Result<Verdict, DropReason> {
    let Departure {
        eni: exit,
        limit,
        verdict,
    } = departure;
    let eni = exit.entry;
    let version = scratch::read(scratch.ip()).version;
    match origin {
        Origin::Pod => version.decrement_ttl(packet)?,
        Origin::Stack if packet.ifindex() == eni.ifindex() => {
            return Ok(if matches!(verdict, Verdict::Translated) {
                Verdict::CarriedTranslated
            } else {
                Verdict::Carried
            });
        }
        Origin::Stack => {}
    }
    redirect::mark_done(packet);
    record::leaves(scratch, exit, version, limit);
    redirect::to_neighbour(eni.ifindex(), &version.next_hop(eni))?;
    Ok(verdict)
}
