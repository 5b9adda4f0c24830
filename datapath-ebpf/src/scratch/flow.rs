//! The flow that the current packet belongs to, or opens.

use datapath_common::abi::{Addr, Flow, FlowKey, PodTuple, PortBlock};

/// Sender of a packet from the inside, and the ENIs by which its flow may leave.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    /// The pod's identity, or [`HOST`](datapath_common::abi::HOST). The next pod with the address
    /// has another one, and does not inherit this pod's flows.
    pub(crate) endpoint: u32,
    /// The one that policy gives to a new flow.
    pub(crate) policy: u8,
    /// The one that owns the source address.
    pub(crate) owner: u8,
}

/// A flow to find or to open.
#[repr(C)]
pub(crate) struct FlowQuery {
    pub(crate) tuple: PodTuple,
    /// The translation address of the ENI.
    pub(crate) snat: Addr,
    /// Identity of the endpoint whose quota the flow counts against.
    pub(crate) endpoint: u32,
    /// Number of the ENI that policy gives.
    pub(crate) eni: u8,
    /// Number of the ENI that owns the source.
    pub(crate) owner: u8,
    pub(crate) tcp_flags: u8,
    /// Not 0 for a flow whose packets get no mark in the stack.
    pub(crate) unmarked: u8,
    /// Not 0 where another flow has been found at the first candidate port.
    pub(crate) taken: u8,
}

/// The flow as it goes into the map.
///
/// It is stored in a per-CPU map, not on the stack. The stack is small, and the verifier follows
/// its content, so it would verify each round of a search separately.
#[repr(C)]
pub(crate) struct PortClaim {
    /// The flow, as words: the kernel takes no type with a lock for a map of this kind.
    pub(crate) flow: [u64; size_of::<Flow>() / 8],
    /// A block that is being made, as words too.
    pub(crate) block: [u64; size_of::<PortBlock>() / 8],
    pub(crate) key: FlowKey,
    pub(crate) snat: Addr,
    /// Ports tried.
    pub(crate) tries: u32,
    pub(crate) pod_port: u16,
    pub(crate) is_host: bool,
    /// True if the port has been looked up already and no flow had it, or if that is assumed.
    pub(crate) is_vacant: bool,
    /// Of the search: which block comes next, and how many in a row had no port.
    pub(crate) next_look: u32,
    pub(crate) looks_in_vain: u32,
    /// True if it goes on in the reserve.
    pub(crate) in_reserve: bool,
    /// True if there is no room for another block.
    pub(crate) has_no_room: bool,
    pub(crate) socket: SocketTuple,
}

/// `struct bpf_sock_tuple` of `include/uapi/linux/bpf.h`, as words: source and destination address,
/// then both ports.
pub(crate) type SocketTuple = [u32; 9];
