//! Queries for a packet's flow, and the operations that open it. Most are global functions. The
//! query is stored in the scratch space ([`ask`]).

use aya_ebpf::bindings::__sk_buff;
use datapath_common::abi::{Addr, AddressEntry, PodTuple, TransportAddr};
use datapath_common::outcome::DropReason;

use super::open::search::search;
use super::open::{First, first, settle};
use super::tracked::{inbound, stack};
use super::{Direction, IngressEni, Mapping, ending, flow};
use crate::base::code::{from_number, reason, to_number};
use crate::packet::Packet;
use crate::scratch::{self, Ip, Ports, ScratchRef, Sender, scratch};

/// Writes of which flow the next questions are, and of whom.
#[inline(always)]
pub(crate) fn ask(scratch: ScratchRef, tuple: PodTuple, sender: Sender, tcp_flags: u8) {
    // SAFETY: this CPU's own part of the scratch space; no other reference to it exists by now.
    let request = unsafe { &mut *scratch.request() };
    request.tuple = tuple;
    request.endpoint = sender.endpoint;
    request.eni = sender.policy;
    request.owner = sender.owner;
    request.tcp_flags = tcp_flags;
    request.unmarked = 0;
    request.taken = 0;
}

/// The requested flow of a packet from the inside; keeps it alive.
#[inline(always)]
pub(crate) fn known() -> Option<Mapping> {
    Mapping::from_register(nat_known())
}

/// The requested flow of a packet from the inside; does not refresh it.
#[inline(always)]
pub(crate) fn peek() -> Option<Mapping> {
    Mapping::from_register(nat_peek())
}

/// Opens the requested, unknown flow at the ENI of the policy, with its translation address.
#[inline(always)]
pub(crate) fn open(
    scratch: ScratchRef,
    packet: &Packet,
    snat: Addr,
) -> Result<Mapping, DropReason> {
    // SAFETY: as in `ask`.
    unsafe { (*scratch.request()).snat = snat };
    let mut answer = nat_first(packet.skb());
    if answer == SEARCH {
        answer = nat_settle(nat_search(packet.skb()));
    }
    Mapping::from_register(answer).ok_or_else(|| reason(answer))
}

/// True if the requested flow is an inbound one of the endpoint; keeps that alive.
#[inline(always)]
pub(crate) fn is_inbound() -> bool {
    nat_is_inbound() != 0
}

/// True if the requested flow is an inbound one of the endpoint; does not refresh it.
#[inline(always)]
pub(crate) fn peek_inbound() -> bool {
    nat_peek_inbound() != 0
}

/// Notes an inbound flow of an endpoint, or keeps the one alive that there is.
#[inline(always)]
pub(crate) fn note_inbound() -> Result<(), DropReason> {
    from_number(nat_inbound())
}

/// Notes what a segment from the outside shows of an endpoint's inbound flow, if it is one of its.
#[inline(always)]
pub(crate) fn see_inbound(packet: &Packet, endpoint: &AddressEntry) {
    let _done = nat_inbound_seen(packet.skb(), endpoint.namespace());
}

/// The ENI whose mark the packets of an endpoint's flow through the host's stack get; `None` for a
/// flow without such a flow mark. Keeps the mark alive.
#[inline(always)]
pub(crate) fn stack_known(side: Direction) -> Option<IngressEni> {
    eni_from_register(stack_found(side.to_register()))
}

/// The ENI of the note of an endpoint's flow that takes the host's stack, as [`stack_known`]; does
/// not refresh the note.
#[inline(always)]
pub(crate) fn peek_stack() -> Option<IngressEni> {
    eni_from_register(stack_peeked())
}

/// Adds the mark of an endpoint's flow through the host's stack, with the ENI whose mark the pod's
/// packets get.
#[inline(always)]
pub(crate) fn note_stack(
    scratch: ScratchRef,
    side: Direction,
    ingress: IngressEni,
) -> Result<(), DropReason> {
    // SAFETY: as in `ask`.
    let request = unsafe { &mut *scratch.request() };
    match ingress {
        IngressEni::Eni(eni) => request.eni = eni,
        IngressEni::Elsewhere => request.unmarked = 1,
    }
    from_number(stack_noted(side.to_register()))
}

/// Sends the replies of a translated flow through the stack, which has carried a packet of the
/// flow.
#[inline(always)]
pub(crate) fn take_stack(mapping: Mapping) {
    let _done = nat_take_stack(Mapping::to_register(Some(mapping)));
}

/// True if no flow has the inside port itself, of what [`open`] could not open.
#[inline(always)]
pub(crate) fn is_own_port_free() -> bool {
    nat_own_port_free() != 0
}

/// Writes of whom the next question is.
#[inline(always)]
pub(crate) fn ask_for(scratch: ScratchRef, sender: Sender) {
    // SAFETY: as in `ask`.
    let request = unsafe { &mut *scratch.request() };
    request.endpoint = sender.endpoint;
    request.eni = sender.policy;
    request.owner = sender.owner;
}

/// Sender that [`ask_for`] has written.
#[inline(always)]
pub(crate) fn asked_for(scratch: ScratchRef) -> Sender {
    scratch::read(scratch.request()).sender()
}

/// [`stack_known`] for the packet with this header, of the sender that was written.
#[inline(always)]
pub(crate) fn stack_asked(ip: &Ip, ports: &Ports, side: Direction) -> Option<IngressEni> {
    let request = scratch().ok()?.request();
    // SAFETY: as in `ask`.
    let request = unsafe { &mut *request };
    request.tuple = match side {
        Direction::FromPod => sent(ip, ports),
        Direction::ToPod => received(ip, ports),
    };
    request.tcp_flags = ports.tcp_flags;
    stack::known(request, side)
}

/// The flow of a packet as its sender sees it. The header lies in the scratch space,
/// as the flow will.
#[inline(always)]
pub(crate) fn sent(ip: &Ip, ports: &Ports) -> PodTuple {
    PodTuple::new(
        ports.protocol,
        TransportAddr::new(scratch::copied(&ip.source), ports.source),
        TransportAddr::new(scratch::copied(&ip.destination), ports.destination),
    )
}

/// The flow of a packet as its receiver sees it. The header lies in the scratch space,
/// as the flow will.
#[inline(always)]
pub(crate) fn received(ip: &Ip, ports: &Ports) -> PodTuple {
    PodTuple::new(
        ports.protocol,
        TransportAddr::new(scratch::copied(&ip.destination), ports.destination),
        TransportAddr::new(scratch::copied(&ip.source), ports.source),
    )
}

/// [`peek_stack`] for the flow that an ICMP error quotes, of the written sender. An error to a pod
/// quotes a packet of the pod, and vice versa. A pod cannot affect another pod's flows.
#[inline(always)]
pub(crate) fn stack_quoted(side: Direction) -> Option<IngressEni> {
    eni_from_register(stack_of_quoted(side.to_register()))
}

/// True if the endpoint that a packet is for has a note of its flow: the sender has used the same
/// ports through the stack.
#[inline(always)]
pub(crate) fn stack_of_receiver(endpoint: u32, ip: &Ip, ports: &Ports) -> bool {
    let Ok(scratch) = scratch() else {
        return false;
    };
    // SAFETY: as in `ask`.
    let request = unsafe { &mut *scratch.request() };
    request.tuple = received(ip, ports);
    request.endpoint = endpoint;
    stack::peek(request).is_some()
}

// Without a use for the context a function must not take it: the compiler would pass anything.

/// An ENI's number and one more, or [`UNMARKED`]; 0 for none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_found(side: u32) -> u32 {
    eni_to_register(scratch().ok().and_then(|scratch| {
        let request = scratch::read(scratch.request());
        stack::known(request, Direction::from_register(side))
    }))
}

/// An ENI's number and one more, or [`UNMARKED`]; 0 for none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_peeked() -> u32 {
    eni_to_register(
        scratch()
            .ok()
            .and_then(|scratch| stack::peek(scratch::read(scratch.request()))),
    )
}

/// An ENI's number and one more, or [`UNMARKED`]; 0 for none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_of_quoted(side: u32) -> u32 {
    eni_to_register(scratch().ok().and_then(|scratch| {
        let (ip, inner) = (scratch::read(scratch.ip()), scratch::read(scratch.inner()));
        let (tuple, is_own) = match Direction::from_register(side) {
            Direction::FromPod => (inner.answered(), inner.destination == ip.source),
            Direction::ToPod => (inner.sent(), inner.source == ip.destination),
        };
        // SAFETY: as in `ask`.
        let request = unsafe { &mut *scratch.request() };
        request.tuple = tuple;
        if is_own { stack::peek(request) } else { None }
    }))
}

/// 0, or the number of the reason why it could not be noted.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_noted(side: u32) -> u32 {
    to_number(scratch().and_then(|scratch| {
        let request = scratch::read(scratch.request());
        stack::note(request, Direction::from_register(side))
    }))
}

/// A flow whose packets get no mark.
const UNMARKED: u32 = 0x200;

#[inline(always)]
fn eni_to_register(found: Option<IngressEni>) -> u32 {
    match found {
        None => 0,
        Some(IngressEni::Eni(eni)) => u32::from(eni) + 1,
        Some(IngressEni::Elsewhere) => UNMARKED,
    }
}

#[inline(always)]
fn eni_from_register(register: u32) -> Option<IngressEni> {
    match register {
        0 => None,
        UNMARKED => Some(IngressEni::Elsewhere),
        number => u8::try_from(number.wrapping_sub(1))
            .ok()
            .map(IngressEni::Eni),
    }
}

/// A mapping as a register.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_known() -> u32 {
    let found = scratch().ok().and_then(|scratch| {
        // SAFETY: as in `ask`.
        let request = unsafe { &mut *scratch.request() };
        flow::known(request).or_else(|| flow::known_elsewhere(request))
    });
    Mapping::to_register(found)
}

/// 1, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_is_inbound() -> u32 {
    let is_it = scratch().is_ok_and(|scratch| {
        let request = scratch::read(scratch.request());
        inbound::known(&request.tuple, request.endpoint, request.tcp_flags)
    });
    is_it.into()
}

/// 1, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_peek_inbound() -> u32 {
    let is_it = scratch().is_ok_and(|scratch| {
        let request = scratch::read(scratch.request());
        inbound::peek(&request.tuple, request.endpoint)
    });
    is_it.into()
}

/// A mapping as a register.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_peek() -> u32 {
    let found = scratch()
        .ok()
        .and_then(|scratch| flow::peek_anywhere(scratch::read(scratch.request())));
    Mapping::to_register(found)
}

/// 0, or the number of the reason why it could not be noted.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_inbound() -> u32 {
    to_number(scratch().and_then(|scratch| {
        let request = scratch::read(scratch.request());
        inbound::note(&request.tuple, request.endpoint, request.tcp_flags)
    }))
}

/// 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_inbound_seen(skb: *mut __sk_buff, namespace: u32) -> u32 {
    if let Ok(scratch) = scratch() {
        let request = scratch::read(scratch.request());
        let ending = || ending::judge(skb, namespace);
        inbound::seen(&request.tuple, request.endpoint, request.tcp_flags, ending);
    }
    0
}

/// 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_take_stack(mapping: u32) -> u32 {
    if let Ok(scratch) = scratch()
        && let Some(mapping) = Mapping::from_register(mapping)
    {
        flow::take_stack(scratch::read(scratch.request()), mapping);
    }
    0
}

/// Number that is neither a mapping's nor a reason's.
const SEARCH: u32 = u32::MAX;

/// 1, or 0 if a flow has the port.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_own_port_free() -> u32 {
    let is_free =
        scratch().is_ok_and(|scratch| flow::is_own_port_free(scratch::read(scratch.request())));
    u32::from(is_free)
}

/// A mapping as a register, or the number of the reason why there is none, or [`SEARCH`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_first(skb: *mut __sk_buff) -> u32 {
    match scratch().and_then(|scratch| first(skb, scratch::read(scratch.request()))) {
        Ok(First::Open(mapping)) => Mapping::to_register(Some(mapping)),
        Ok(First::Taken) => SEARCH,
        Err(reason) => reason as u32,
    }
}

/// The bits of what the last insertion gave.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_search(skb: *mut __sk_buff) -> u32 {
    search(skb).cast_unsigned()
}

/// A mapping as a register, or the number of the reason why there is none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_settle(result: u32) -> u32 {
    match scratch()
        .and_then(|scratch| settle(scratch::read(scratch.request()), result.cast_signed()))
    {
        Ok(mapping) => Mapping::to_register(Some(mapping)),
        Err(reason) => reason as u32,
    }
}
