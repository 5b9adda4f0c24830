//! Claiming a port: putting the flow in.

use core::{hint, mem};

use aya_ebpf::bindings::__sk_buff;
use datapath_common::abi::{Addr, Flow, FlowKey, HOST, PodTuple, PortBlock, PortBlockKey};
use datapath_common::ports::keeps_port;
use datapath_common::progress;

use super::Sender;
use super::allocate::count_opened;
use super::host_socket::{self, SocketTuple};
use super::tables::{FLOWS, Refusal, Table as _};
use super::{blocks, ports};
use crate::clock;
use crate::maps::ATTEMPT;

/// The flow as it goes into the map.
///
/// It is stored in a per-CPU map, not on the stack. The stack is small, and the verifier follows
/// its content, so it would verify each round of a search separately.
#[repr(C)]
pub(crate) struct Attempt {
    /// The flow, as words: the kernel takes no type with a lock for a map of this kind.
    flow: [u64; size_of::<Flow>() / 8],
    /// A block that is being made, as words too.
    pub(super) block: [u64; size_of::<PortBlock>() / 8],
    pub(super) key: FlowKey,
    snat: Addr,
    /// Ports tried.
    pub(super) tries: u32,
    pod_port: u16,
    pub(super) is_host: bool,
    /// True if the port has been looked up already and no flow had it, or if that is assumed.
    is_vacant: bool,
    /// Of the search: which block comes next, and how many in a row had no port.
    pub(super) next_look: u32,
    pub(super) looks_in_vain: u32,
    /// True if it goes on in the reserve.
    pub(super) in_reserve: bool,
    /// True if there is no room for another block.
    pub(super) has_no_room: bool,
    socket: SocketTuple,
}

/// This CPU's. No other program comes in between: a CPU runs one at a time.
#[inline(always)]
pub(super) fn attempt() -> Option<&'static mut Attempt> {
    // The compiler has to read again the fields that a global function has written.
    let attempt = hint::black_box(ATTEMPT.get_ptr_mut(0)?);
    // SAFETY: a map's value of this CPU's own. Callers hold one of these references at a time.
    Some(unsafe { &mut *attempt })
}

impl Attempt {
    /// Prepares the attempt for a flow of a packet with these flags. `is_vacant` is true if no flow
    /// has its first candidate port, or if that is assumed.
    #[inline(always)]
    pub(super) fn prepare(
        &mut self,
        tuple: &PodTuple,
        sender: Sender,
        snat: Addr,
        tcp_flags: u8,
        is_vacant: bool,
    ) {
        let key = FlowKey::new(
            sender.policy,
            tuple.protocol,
            tuple.remote,
            tuple.remote_port,
            0,
        );
        let now = clock::now();
        let flow = self.flow();
        *flow = Flow::new(&key, tuple.pod, tuple.pod_port, sender.endpoint, now);
        flow.progress_out = progress::of_packet(tuple.protocol, tcp_flags);
        self.key = key;
        self.snat = snat;
        self.tries = 0;
        self.pod_port = tuple.pod_port;
        self.is_host = sender.endpoint == HOST;
        self.is_vacant = is_vacant;
        self.has_no_room = false;
        self.in_reserve = false;
    }

    /// The port that the flow gets if it is free, as it lies in a packet.
    #[inline(always)]
    pub(super) fn candidate(&mut self) -> u16 {
        let is_kept = keeps_port(self.key.protocol, self.endpoint());
        let &mut Flow { pod, pod_port, .. } = self.flow();
        ports::candidate(pod, pod_port, is_kept)
    }

    /// Identity of the endpoint that owns the flow.
    #[inline(always)]
    pub(super) fn endpoint(&mut self) -> u32 {
        self.flow().endpoint
    }

    #[inline(always)]
    fn flow(&mut self) -> &mut Flow {
        const { assert!(size_of::<Flow>().is_multiple_of(8) && align_of::<Flow>() == 8) };
        // SAFETY: the words have the size and alignment of a flow, and any bytes are one.
        unsafe { &mut *(&raw mut self.flow).cast::<Flow>() }
    }

    /// True if the port is the one on the inside.
    #[inline(always)]
    pub(super) fn has_own_port(&self) -> bool {
        self.key.port == self.pod_port
    }

    /// The key of a block of the destination.
    #[inline(always)]
    pub(super) fn block_key(&self, number: u8) -> PortBlockKey {
        let key = &self.key;
        PortBlockKey::new(key.eni, key.protocol, key.remote, key.remote_port, number)
    }
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
fn at(skb: *mut __sk_buff, attempt: &mut Attempt, port: u16) -> i32 {
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
