//! Validation of segments from the outside that end a connection. An off-path attacker can forge
//! such segments. The endpoint's socket has the expected sequence number.

use aya_ebpf::bindings::{__sk_buff, bpf_sock};
use aya_ebpf::helpers::generated::{bpf_sk_release, bpf_skc_lookup_tcp, bpf_tcp_sock};
use aya_ebpf::programs::TcContext;
use datapath_common::abi::PodTuple;
use datapath_common::headers::Tcp;
use datapath_common::progress::Ending;

use super::flow;
use super::host_socket::{self, FlowEnds};
use crate::packet::Packet;
use crate::scratch::{self, ScratchRef, scratch};

/// The host's own namespace; `AddressEntry::namespace` has the others.
pub(crate) const OF_HOST: u32 = u32::MAX;

/// Socket states, as in `include/net/tcp_states.h`.
mod state {
    pub(super) const TIME_WAIT: u32 = 6;
    pub(super) const LISTEN: u32 = 10;
}

/// Records the end of a translated flow's connection, if the segment's sequence number is right.
/// The flow's key is in the scratch space. `namespace` is that of the socket. Returns the judgement
/// of the segment.
#[inline(always)]
pub(crate) fn end_answered(packet: &Packet, namespace: u32) -> Ending {
    let ending = judge(packet.skb(), namespace);
    let _done = nat_end_answered(ending as u32);
    ending
}

/// Judges the segment in the scratch space, which ends a connection.
#[inline(always)]
pub(super) fn judge(skb: *mut __sk_buff, namespace: u32) -> Ending {
    Ending::from_register(nat_ending(skb, namespace))
}

/// Records the end of a connection; returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_end_answered(ending: u32) -> u32 {
    if let Ok(scratch) = scratch() {
        let (key, request) = (
            scratch::read(scratch.flow()),
            scratch::read(scratch.request()),
        );
        flow::end(key, Ending::from_register(ending), request.tcp_flags);
    }
    0
}

/// Judges the segment in the scratch space; returns the number of an [`Ending`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_ending(skb: *mut __sk_buff, namespace: u32) -> u32 {
    let packet = Packet::new(TcContext::new(skb));
    let ending = scratch().map_or(Ending::Doubtful, |scratch| of(&packet, scratch, namespace));
    ending as u32
}

/// Judges a segment. Without a socket, as for a virtual machine, it stays doubtful.
#[inline(always)]
fn of(packet: &Packet, scratch: ScratchRef, namespace: u32) -> Ending {
    let at = scratch::read(scratch.ip()).transport + Tcp::SEQUENCE;
    let Ok(sequence) = packet.copy::<[u8; 4]>(at) else {
        return Ending::Ignored;
    };
    let tuple = &scratch::read(scratch.request()).tuple;
    match socket(packet.skb(), scratch, tuple, namespace) {
        Socket::Awaits(awaited) => Ending::of(u32::from_be_bytes(sequence), awaited),
        Socket::Closed => Ending::Believed,
        Socket::Unknown => Ending::Doubtful,
    }
}

/// True if the endpoint's kernel has the connection of a tuple. `namespace` is that of the socket.
#[inline(always)]
pub(super) fn goes_on(skb: *mut __sk_buff, tuple: &PodTuple, namespace: u32) -> bool {
    scratch().is_ok_and(|scratch| {
        matches!(
            socket(skb, scratch, tuple, namespace),
            Socket::Awaits(_awaited)
        )
    })
}

/// State of a connection in the endpoint's socket.
enum Socket {
    /// The next expected sequence number.
    Awaits(u32),
    /// The endpoint has closed the connection.
    Closed,
    /// There is no socket of the connection.
    Unknown,
}

#[inline(always)]
fn socket(skb: *mut __sk_buff, scratch: ScratchRef, tuple: &PodTuple, namespace: u32) -> Socket {
    let ends = FlowEnds {
        remote: tuple.remote,
        remote_port: tuple.remote_port,
        own: tuple.pod,
        own_port: tuple.pod_port,
    };
    let namespace = match namespace {
        0 => return Socket::Unknown,
        OF_HOST => host_socket::CURRENT_NETNS,
        more => u64::from(more - 1),
    };
    // SAFETY: this CPU's own part of the scratch space, to which no other reference exists.
    let wanted = unsafe { &mut *scratch.socket() };
    let size = host_socket::write(&ends, wanted);
    // SAFETY: as in `host_socket::has`. What is read of a socket is read before it is released.
    unsafe {
        let wanted = wanted.as_mut_ptr().cast();
        let socket: *mut bpf_sock = bpf_skc_lookup_tcp(skb.cast(), wanted, size, namespace, 0);
        if socket.is_null() {
            return Socket::Unknown;
        }
        let state = (*socket).state;
        let connection = bpf_tcp_sock(socket);
        let found = if !connection.is_null() && state != state::LISTEN {
            Socket::Awaits((*connection).rcv_nxt)
        } else if state == state::TIME_WAIT {
            Socket::Closed
        } else {
            Socket::Unknown
        };
        bpf_sk_release(socket.cast());
        found
    }
}
