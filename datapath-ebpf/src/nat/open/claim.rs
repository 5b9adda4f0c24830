//! Claiming a port: putting the flow in.

use core::mem;

use aya_ebpf::bindings::__sk_buff;
use datapath_common::abi::Flow;
use datapath_common::ports::keeps_port;

use super::count::count_opened;
use crate::nat::attempt::attempt;
use crate::nat::host_socket;
use crate::nat::ports::{self, blocks};
use crate::nat::tables::{FLOWS, Refusal, Table as _};
use crate::scratch::PortClaim;

/// The port that the flow of an attempt gets if it is free, as it lies in a packet.
#[inline(always)]
pub(super) fn candidate(attempt: &mut PortClaim) -> u16 {
    let is_kept = keeps_port(attempt.key.protocol, attempt.endpoint());
    let &mut Flow { pod, pod_port, .. } = attempt.flow();
    ports::candidate(pod, pod_port, is_kept)
}

/// Opens the flow at a port, as it lies in a packet, unless another one or a socket of the host
/// has it. Gives what [`Refusal::of`] takes.
#[inline(always)]
pub(super) fn claim(skb: *mut __sk_buff, port: u16) -> i32 {
    nat_claim(skb, port.into()).cast_signed()
}

/// Opens the flow at its first candidate port, as [`claim`], and counts it: no other step follows.
#[inline(always)]
pub(super) fn claim_first(skb: *mut __sk_buff, port: u16) -> i32 {
    nat_claim(skb, u32::from(port) | IS_FIRST).cast_signed()
}

/// Beside a port: it is the first candidate.
const IS_FIRST: u32 = 1 << u16::BITS;

/// The bits of what [`Refusal::of`] takes.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is the port"
)]
extern "C" fn nat_claim(skb: *mut __sk_buff, port: u32) -> u32 {
    let Some(attempt) = attempt() else {
        return Refusal::FAILED.cast_unsigned();
    };
    let result = at(skb, attempt, port as u16);
    if result == 0 && port & IS_FIRST != 0 {
        count_opened(attempt);
    }
    result.cast_unsigned()
}

#[inline(always)]
fn at(skb: *mut __sk_buff, attempt: &mut PortClaim, port: u16) -> i32 {
    attempt.tries = attempt.tries.wrapping_add(1);
    attempt.key.port = port;
    attempt.flow().set_port(port);
    // A look-up costs half as much as a failed insertion.
    let is_vacant = mem::replace(&mut attempt.is_vacant, false);
    if !is_vacant && FLOWS.find(&attempt.key).is_some() {
        return Refusal::EXISTS;
    }
    // A packet of the host comes from the socket that has its own port.
    let is_own = attempt.is_host && attempt.has_own_port();
    let (key, snat) = (&attempt.key, attempt.snat);
    if !is_own && host_socket::has(skb, key, snat, &mut attempt.socket) {
        return Refusal::EXISTS;
    }
    // SAFETY: as for `flow`; the key is another part.
    let flow = unsafe { &*(&raw const attempt.flow).cast::<Flow>() };
    let result = FLOWS.put(&attempt.key, flow);
    if result == 0 {
        blocks::note_used(&attempt.key);
    }
    result
}
