//! Translated flows: keys and values of the NAT maps.
//!
//! One entry is one flow, keyed by what its answers carry. Putting the entry in with `BPF_NOEXIST`
//! is the claim of the port, so no two flows can hold one, and no half of a flow can be lost.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Addr, TransportAddr};

/// Key of `FLOWS_V4` and `FLOWS_V6`: what an answer from the outside carries.
///
/// Ports lie as in a packet. An ICMP query has its id for `port` and 0 for `remote_port`.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct FlowKey {
    /// Remote address that the pod communicates with.
    pub remote: Addr,
    /// The remote's port.
    pub remote_port: u16,
    /// Our port on the ENI's translation address.
    pub port: u16,
    /// Number of the ENI whose address the flow has to the outside.
    pub eni: u8,
    /// IP protocol.
    pub protocol: u8,
    reserved: u16,
}

impl FlowKey {
    /// A key.
    #[inline(always)]
    #[must_use]
    pub const fn new(eni: u8, protocol: u8, remote: TransportAddr, port: u16) -> Self {
        Self {
            remote: remote.address,
            remote_port: remote.port,
            port,
            eni,
            protocol,
            reserved: 0,
        }
    }
}

/// `struct bpf_spin_lock` of `include/uapi/linux/bpf.h`. The kernel finds it in a map's value by
/// this name.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct bpf_spin_lock {
    val: u32,
}

impl bpf_spin_lock {
    /// Not held.
    pub(super) const FREE: Self = Self { val: 0 };
}

/// Value of `FLOWS_V4` and `FLOWS_V6`.
///
/// The size matters: with it, an entry fills a slab object of 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flow {
    /// Guards `dead`, and `last_seen` of a flow that has been idle.
    pub lock: bpf_spin_lock,
    /// Owner of the flow, whose quota it counts against: [`super::AddressEntry::identity`] of the
    /// endpoint, 0 for a flow of the host.
    pub endpoint: u32,
    /// When its last packet passed, in jiffies.
    pub last_seen: u64,
    /// The inside address: the pod's, or for a flow of the host the translation address itself.
    pub pod: Addr,
    /// The inside port, as it lies in a packet.
    pub pod_port: u16,
    /// Progress that packets from the inside have shown; bits of [`crate::progress`].
    pub progress_out: u8,
    /// Progress that packets from the outside have shown; bits of [`crate::progress`]. A byte of
    /// its own, because both directions are written without a lock.
    pub progress_in: u8,
    echo_remote: u32,
    echo_remote_port: u16,
    echo_port: u16,
    echo_eni: u8,
    echo_protocol: u8,
    /// Not 0 once the flow is about to be removed: then it is as good as gone.
    pub dead: u8,
    /// Not 0 for a flow whose packets take the host's stack on the inside of translation.
    pub stack: u8,
}

impl Flow {
    /// A new flow.
    #[inline(always)]
    #[must_use]
    pub const fn new(key: &FlowKey, pod: TransportAddr, endpoint: u32, now: u64) -> Self {
        Self {
            lock: bpf_spin_lock::FREE,
            endpoint,
            last_seen: now,
            pod: pod.address,
            pod_port: pod.port,
            progress_out: 0,
            progress_in: 0,
            echo_remote: key.remote.fold(),
            echo_remote_port: key.remote_port,
            echo_port: key.port,
            echo_eni: key.eni,
            echo_protocol: key.protocol,
            dead: 0,
            stack: 0,
        }
    }

    /// Moves the flow to another port, as it lies in a packet.
    #[inline(always)]
    pub const fn set_port(&mut self, port: u16) {
        self.echo_port = port;
    }

    /// True if this is the flow of a key.
    ///
    /// The kernel gives the slot of a removed entry to the next one at once. A program that looked
    /// an entry up just before then reads another flow's value, which this check detects. For IPv6,
    /// it fails once in 2^32 reuses.
    #[inline(always)]
    #[must_use]
    pub const fn is_of(&self, key: &FlowKey) -> bool {
        self.echo_remote == key.remote.fold()
            && self.echo_remote_port == key.remote_port
            && self.echo_port == key.port
            && self.echo_eni == key.eni
            && self.echo_protocol == key.protocol
    }
}

/// A flow as the pod sees it: key of `MOVED_V4`, `MOVED_V6`, `INBOUND` and `STACK`.
///
/// An ICMP query has its id for the port of the side that asks, and 0 for the other's.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct PodTuple {
    /// The pod's address.
    pub pod: Addr,
    /// Remote address that it communicates with.
    pub remote: Addr,
    /// The pod's port, as it lies in a packet.
    pub pod_port: u16,
    /// The remote's port, as it lies in a packet.
    pub remote_port: u16,
    /// IP protocol.
    pub protocol: u8,
    reserved: u8,
    reserved_too: u16,
}

impl PodTuple {
    /// A tuple.
    #[inline(always)]
    #[must_use]
    pub const fn new(protocol: u8, pod: TransportAddr, remote: TransportAddr) -> Self {
        Self {
            pod: pod.address,
            remote: remote.address,
            pod_port: pod.port,
            remote_port: remote.port,
            protocol,
            reserved: 0,
            reserved_too: 0,
        }
    }
}

/// Value of `MOVED_V4` and `MOVED_V6`: the port of a flow that did not get its first candidate.
/// It counts only as long as the flow that it leads to is the tuple's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Moved {
    /// Our port, as it lies in a packet.
    pub port: u16,
    /// Number of the ENI.
    pub eni: u8,
    reserved: u8,
}

impl Moved {
    /// A value.
    #[inline(always)]
    #[must_use]
    pub const fn new(eni: u8, port: u16) -> Self {
        Self {
            port,
            eni,
            reserved: 0,
        }
    }
}

/// Ports of one block of a destination's ports.
pub const PORTS_PER_BLOCK: u32 = 512;

/// Key of `PORT_BLOCKS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PortBlockKey {
    /// The destination.
    pub remote: Addr,
    /// Its port, as it lies in a packet.
    pub remote_port: u16,
    /// Number of the ENI.
    pub eni: u8,
    /// IP protocol.
    pub protocol: u8,
    /// The first port of the block divided by [`PORTS_PER_BLOCK`].
    pub block: u8,
    reserved: u8,
    reserved_too: u16,
}

impl PortBlockKey {
    /// A key.
    #[inline(always)]
    #[must_use]
    pub const fn new(eni: u8, protocol: u8, remote: TransportAddr, block: u8) -> Self {
        Self {
            remote: remote.address,
            remote_port: remote.port,
            eni,
            protocol,
            block,
            reserved: 0,
            reserved_too: 0,
        }
    }
}

/// Value of `PORT_BLOCKS`: which ports of a busy destination are likely used.
///
/// A hint: what decides is the insertion of the flow. A set bit whose port is free costs one port
/// until user space clears it, a clear bit whose port is used costs one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PortBlock {
    /// Guards the words.
    pub lock: bpf_spin_lock,
    reserved: u32,
    /// One bit for each port.
    pub used: [u64; 8],
}

impl PortBlock {
    /// A block of free ports.
    pub const FREE: Self = Self {
        lock: bpf_spin_lock::FREE,
        reserved: 0,
        used: [0; 8],
    };
}

/// Value of the one slot of `NAT_CONTROL`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NatControl {
    /// Not 0 while there may be a translated flow to a destination that is exempt by now, or from
    /// a pool that skips masquerade by now. Only then are flows looked up for such packets.
    pub may_be_exempt: u32,
    /// Not 0 while there may be a translated flow at the ENI of another policy. Only then are flows
    /// looked up there.
    pub may_be_elsewhere: u32,
}

const _: () = assert!(size_of::<FlowKey>() == 24);
const _: () = assert!(size_of::<Flow>() == 48);
const _: () = assert!(size_of::<PodTuple>() == 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_knows_its_key() {
        let remote = Addr::from_v4_word(0x0101_0101);
        let key = FlowKey::new(0, 6, TransportAddr::new(remote, 80), 5000);
        let flow = Flow::new(
            &key,
            TransportAddr::new(Addr::from_v4_word(0x0a00_0001), 5000),
            7,
            0,
        );
        assert!(flow.is_of(&key));
        let others = [
            FlowKey::new(1, 6, TransportAddr::new(remote, 80), 5000),
            FlowKey::new(0, 17, TransportAddr::new(remote, 80), 5000),
            FlowKey::new(
                0,
                6,
                TransportAddr::new(Addr::from_v4_word(0x0101_0102), 80),
                5000,
            ),
            FlowKey::new(0, 6, TransportAddr::new(remote, 81), 5000),
            FlowKey::new(0, 6, TransportAddr::new(remote, 80), 5001),
        ];
        for other in others {
            assert!(!flow.is_of(&other), "{other:?}");
        }
    }
}
