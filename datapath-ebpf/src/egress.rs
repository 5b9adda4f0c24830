//! Egress of a pod's packet: the ENI by which it leaves the node, and its source. The rules are
//! equal for packets from a pod and for those that the stack forwards for it.

mod asked;
mod leaving;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{Addr, EniEntry};
use datapath_common::fault::Fault;
use datapath_common::masquerade::{
    Decision, KnownFlow, Opening, PoolPolicy, Question, Ruling, Why, decide, rule,
};
use datapath_common::outcome::{DropReason, Verdict};

use crate::cache;
use crate::family::{Piece, Version};
use crate::fault;
use crate::fragment;
use crate::icmp_error;
use crate::maps;
use crate::nat::{self, Came, Mapping, Side};
use crate::packet::Packet;
use crate::redirect;
use crate::rewrite::{Side as Place, rewrite};
use crate::settings;
use crate::transport::{self, Ports, Transport};
use crate::verdict::Code;
use crate::way::Way;
use crate::work::{self, Parts, work};

use asked::open;
pub(crate) use asked::{Asked, ask, flow};
use leaving::leave_by;
pub(crate) use leaving::{Leaving, leaving, prepare};

/// From where a packet comes that leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From a pod, past the stack.
    Pod,
    /// From the stack, which has done what is due on the way.
    Stack,
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
    Take(Way),
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

/// Sends the packet out that the work is about.
#[inline(always)]
fn send(packet: &mut Packet, origin: Origin) -> Result<Verdict, DropReason> {
    let work = work()?;
    // SAFETY: this CPU's own part of the work; no other reference to it exists.
    let leaving = unsafe { &mut *work.leaving() };
    let owner = leaving.sender.owner;
    let version = work::read(work.ip()).version;
    let (exit, verdict) = match action(packet, work, leaving, origin)? {
        Action::Keep(verdict) => ((owner, eni(owner)?), verdict),
        Action::Translate(ports, mapping) => {
            let (exit, snat) = exit(version, mapping.eni())?;
            cache::translates(work, mapping.eni());
            rewrite(packet, work, &ports, Place::Source, (snat, mapping.port()))?;
            ((mapping.eni(), exit), Verdict::Translated)
        }
        Action::TranslateError(mapping) => {
            let (exit, snat) = exit(version, mapping.eni())?;
            let (side, port, outer) = (Place::Destination, mapping.port(), Some(Place::Source));
            icmp_error::rewrite_error(packet, work, side, (snat, port), outer)?;
            ((mapping.eni(), exit), Verdict::Translated)
        }
        Action::Take(way) => {
            // It is none that a packet of this action has.
            let verdict = way.take(packet, owner);
            return verdict.ok_or(DropReason::HelperFailed);
        }
    };
    let limit = eni(owner)?.mtu();
    out(packet, work, exit, limit, (origin, verdict))
}

/// An ENI by its number.
#[inline(always)]
fn eni(number: u8) -> Result<&'static EniEntry, DropReason> {
    maps::eni(number).ok_or(DropReason::EniNotReady)
}

/// True if a flow that a pod opens to this destination is translated, if its pool is.
#[inline(always)]
pub(crate) fn is_translated(destination: Addr) -> bool {
    let question = Question {
        flow: KnownFlow::None,
        destination: maps::destination(&destination),
        pool: PoolPolicy::Masquerade,
        is_on: Version::of(destination).is_masqueraded(),
        metadata: settings::metadata_policy(),
        opening: Opening::Opens,
    };
    matches!(rule(&question), Ruling::Translated(_))
}

/// Decides how a packet leaves.
#[inline(always)]
fn action(
    packet: &mut Packet,
    work: Parts,
    leaving: &mut Leaving,
    origin: Origin,
) -> Result<Action, DropReason> {
    let ip = work::read(work.ip());
    let ruling = rule(&leaving.question);
    match ruling {
        Ruling::Drop(reason) => return Err(reason),
        // No look-up where it cannot change the outcome.
        Ruling::Untranslated(_) if !nat::may_be_exempt() => {
            if !settings::notes_stack() {
                return Ok(Action::Keep(Verdict::Eni));
            }
            leaving.may_be_translated = false;
        }
        Ruling::Translated(exit) => leave_by(leaving, exit),
        Ruling::Untranslated(_) => {}
    }
    if goes_by_notes(origin) && fragment::is_reordered(ip) {
        return Ok(Action::Take(Way::Reordered));
    }
    let ports = match ip.fragment {
        Piece::Whole | Piece::First => {
            let read = transport::read(packet, work);
            if goes_by_notes(origin) && !matches!(read, Ok(Transport::Ports(_))) {
                fragment::note_portless(ip)?;
            }
            match (read, ruling) {
                (Ok(Transport::Ports(ports)), _) => ports,
                (Ok(Transport::Error), _) => {
                    return error(packet, work, leaving, ruling, origin);
                }
                (Ok(Transport::None), _) => return unknown(leaving),
                // A truncated packet belongs to no translated flow. The rest of its path is not
                // ours.
                (Err(_), Ruling::Untranslated(_)) => return Ok(Action::Keep(Verdict::Eni)),
                (Err(reason), _) => return Err(reason),
            }
        }
        Piece::Later => match (fragment::recall(), ruling) {
            (Some(ports), _) if fragment::is_portless(&ports) => return unknown(leaving),
            (Some(ports), _) => ports,
            (None, _) if goes_by_notes(origin) => {
                return fragment::reorder().map(|()| Action::Take(Way::Reordered));
            }
            (None, Ruling::Untranslated(_)) => return Ok(Action::Keep(Verdict::Eni)),
            (None, _) => return Err(DropReason::FragmentUnknown),
        },
    };
    fragment::note(ip, &ports)?;
    with_ports(packet, work, leaving, ports, origin)
}

/// True if a packet of a flow goes to conntrack, which is to see all of the flows that it has seen
/// any of.
#[inline(always)]
pub(crate) fn goes_up(mapping: Mapping, origin: Origin) -> bool {
    mapping.takes_stack() && goes_by_notes(origin) && !fault::has(Fault::StackOutPassed)
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
    packet: &Packet,
    work: Parts,
    leaving: &mut Leaving,
    ports: Ports,
    origin: Origin,
) -> Result<Action, DropReason> {
    let (ip, sender) = (work::read(work.ip()), leaving.sender);
    let tuple = nat::sent(ip, &ports);
    nat::ask(work, tuple, sender, ports.tcp_flags);
    let action = of_flow(packet, work, leaving, ports, origin)?;
    let is_noted =
        settings::notes_stack() && matches!(origin, Origin::Stack) && !packet.is_exception();
    match action {
        Action::Keep(_) if is_noted => {
            nat::note_stack(work, Side::Pod, Came::Eni(sender.owner))?;
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
    packet: &Packet,
    work: Parts,
    leaving: &mut Leaving,
    ports: Ports,
    origin: Origin,
) -> Result<Action, DropReason> {
    let sender = leaving.sender;
    // A translated flow stays one, whatever the remote sends to the pod's own address, or through a
    // node port.
    if leaving.may_be_translated
        && let Some(mapping) = nat::known()
    {
        return Ok(if goes_up(mapping, origin) {
            Action::Take(Way::Stack(Came::Eni(sender.owner)))
        } else {
            Action::Translate(ports, mapping)
        });
    }
    if goes_by_notes(origin)
        && let Some(eni) = nat::stack_known(Side::Pod)
        && !fault::has(Fault::StackPassed)
    {
        return Ok(Action::Take(Way::Stack(eni)));
    }
    if !leaving.may_be_translated {
        return Ok(Action::Keep(Verdict::Eni));
    }
    leaving.question.opening = ports.opening;
    if nat::is_inbound() {
        leaving.question.flow = KnownFlow::Inbound;
    }
    match decide(&leaving.question) {
        Decision::Untranslated(Why::Inbound) => Ok(Action::Keep(Verdict::Inbound)),
        Decision::Untranslated(_) => Ok(Action::Keep(Verdict::Eni)),
        Decision::NoteInbound => {
            nat::note_inbound()?;
            Ok(Action::Keep(Verdict::Inbound))
        }
        Decision::Translate(_) => {
            let version = work::read(work.ip()).version;
            let mapping = open(packet, work, version, sender.policy)?;
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
    packet: &Packet,
    work: Parts,
    leaving: &mut Leaving,
    ruling: Ruling,
    origin: Origin,
) -> Result<Action, DropReason> {
    leaving.question.opening = Opening::Belongs;
    let inner = match (icmp_error::inner(packet, work), ruling) {
        (Ok(inner), _) => inner,
        // A cut quote is like a cut packet.
        (Err(_), Ruling::Untranslated(_)) => None,
        (Err(reason), _) => return Err(reason),
    };
    // A pod has no say in another's flows.
    let source = work::read(work.ip()).source;
    if let Some(inner) = inner.filter(|inner| inner.destination == source) {
        nat::ask(work, inner.answered(), leaving.sender, 0);
        if leaving.may_be_translated
            && let Some(mapping) = nat::peek()
        {
            return Ok(Action::TranslateError(mapping));
        }
        if goes_by_notes(origin)
            && let Some(eni) = nat::peek_stack()
            && !fault::has(Fault::StackErrorPassed)
        {
            return Ok(Action::Take(Way::Stack(eni)));
        }
        if leaving.may_be_translated && nat::peek_inbound() {
            leaving.question.flow = KnownFlow::Inbound;
        }
    }
    unknown(leaving)
}

/// Decides on a packet that no translated flow is known for and that opens none.
#[inline(always)]
fn unknown(leaving: &Leaving) -> Result<Action, DropReason> {
    match decide(&leaving.question) {
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

/// Sends a packet out of an ENI with a number to its gateway.
///
/// A packet that the stack sends by that ENI anyway goes on. One that it sends by another ENI is
/// misrouted, or is to leave by the primary. A pod's packets larger than `limit` are not
/// redirected.
#[inline(always)]
fn out(
    packet: &mut Packet,
    work: Parts,
    (number, eni): (u8, &EniEntry),
    limit: u32,
    (origin, verdict): (Origin, Verdict),
) -> Result<Verdict, DropReason> {
    let version = work::read(work.ip()).version;
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
    cache::leaves(work, (number, eni), version, limit);
    redirect::to_neighbour(eni.ifindex(), &version.next_hop(eni))?;
    Ok(verdict)
}
