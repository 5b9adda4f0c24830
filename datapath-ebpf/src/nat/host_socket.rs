//! Check for a socket of the host that has a port towards a destination.

use aya_ebpf::bindings::{__sk_buff, bpf_sock};
use aya_ebpf::helpers::generated::{bpf_sk_lookup_udp, bpf_sk_release, bpf_skc_lookup_tcp};
use datapath_common::abi::{Addr, FlowKey};
use datapath_common::headers::{self, protocol};

use crate::scratch::SocketTuple;

/// `BPF_F_CURRENT_NETNS` of `include/uapi/linux/bpf.h`.
pub(super) const CURRENT_NETNS: u64 = u64::MAX;

/// Both ends of what a socket receives; ports as they lie in a packet.
pub(super) struct FlowEnds {
    pub(super) remote: Addr,
    pub(super) remote_port: u16,
    pub(super) own: Addr,
    pub(super) own_port: u16,
}

/// True if a socket of this namespace would get the answers of a flow: a listening, connected or
/// `TIME_WAIT` one of TCP, or one of UDP. `tuple` is memory to work in.
#[inline(always)]
pub(super) fn has(
    skb: *mut __sk_buff,
    key: &FlowKey,
    address: Addr,
    tuple: &mut SocketTuple,
) -> bool {
    if key.protocol != protocol::TCP && key.protocol != protocol::UDP {
        return false;
    }
    let ends = FlowEnds {
        remote: key.remote,
        remote_port: key.remote_port,
        own: address,
        own_port: key.port,
    };
    let size = write(&ends, tuple);
    let tuple = tuple.as_mut_ptr().cast();
    let skb = skb.cast();
    // SAFETY: the helpers read `size` bytes of the tuple, which has more; `skb` is the program's
    // context. A socket that they give is released.
    unsafe {
        let socket: *mut bpf_sock = if key.protocol == protocol::TCP {
            bpf_skc_lookup_tcp(skb, tuple, size, CURRENT_NETNS, 0)
        } else {
            bpf_sk_lookup_udp(skb, tuple, size, CURRENT_NETNS, 0)
        };
        if socket.is_null() {
            return false;
        }
        bpf_sk_release(socket.cast());
    }
    true
}

/// Writes the addresses and ports of a socket's received packets. Returns their length in bytes.
#[inline(always)]
pub(super) fn write(ends: &FlowEnds, tuple: &mut SocketTuple) -> u32 {
    let (source, destination) = (ends.remote.words(), ends.own.words());
    let ports = headers::word([ends.remote_port, ends.own_port]);
    if ends.remote.is_v4() {
        let [_, _, _, source] = source;
        let [_, _, _, destination] = destination;
        [tuple[0], tuple[1], tuple[2]] = [source, destination, ports];
        12
    } else {
        let [s0, s1, s2, s3] = source;
        let [d0, d1, d2, d3] = destination;
        *tuple = [s0, s1, s2, s3, d0, d1, d2, d3, ports];
        36
    }
}
