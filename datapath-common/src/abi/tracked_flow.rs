//! Notes of flows that are not translated: value of `INBOUND` and `STACK`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::flow::{PodTuple, bpf_spin_lock};

/// A note of a flow: of one that was opened from outside the exempt destinations, and whose answers
/// are not translated (`INBOUND`), or of one that takes the host's stack in both directions,
/// because service NAT there may have translated it (`STACK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TrackedFlow {
    /// When its last packet passed, in jiffies.
    pub last_seen: u64,
    /// Guards `dead`, and `last_seen` of a flow that has been idle.
    pub lock: bpf_spin_lock,
    /// Progress that packets from the pod have shown; bits of [`crate::progress`].
    pub progress_out: u8,
    /// Progress that packets to the pod have shown, bits of [`crate::progress`]; in `INBOUND` of
    /// TCP alone.
    pub progress_in: u8,
    /// Not 0 once the flow is about to be removed: then it is as good as gone.
    pub dead: u8,
    echo_protocol: u8,
    /// Owner of the flow, whose quota it counts against: [`super::AddressEntry::identity`] of the
    /// endpoint.
    pub endpoint: u32,
    /// Time of creation: the low word of the jiffies.
    pub made: u32,
    echo_pod: u32,
    echo_remote: u32,
    echo_pod_port: u16,
    echo_remote_port: u16,
    /// Number of the ENI whose mark the pod's packets get (`STACK`).
    pub eni: u8,
    /// Not 0 if they get none: the request came by a device that is no ENI, and the host's own
    /// routes lead back there (`STACK`).
    pub unmarked: u8,
    reserved_lane: u16,
}

impl TrackedFlow {
    /// A value.
    #[inline(always)]
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low word of the time is kept"
    )]
    pub const fn new(tuple: &PodTuple, now: u64, endpoint: u32, progress_out: u8) -> Self {
        Self {
            last_seen: now,
            lock: bpf_spin_lock::FREE,
            progress_out,
            progress_in: 0,
            dead: 0,
            echo_protocol: tuple.protocol,
            endpoint,
            made: now as u32,
            echo_pod: tuple.pod.fold(),
            echo_remote: tuple.remote.fold(),
            echo_pod_port: tuple.pod_port,
            echo_remote_port: tuple.remote_port,
            eni: 0,
            unmarked: 0,
            reserved_lane: 0,
        }
    }

    /// This note for a flow that came by an ENI, or by another device.
    #[inline(always)]
    #[must_use]
    pub const fn by(mut self, eni: Option<u8>) -> Self {
        match eni {
            Some(eni) => self.eni = eni,
            None => self.unmarked = 1,
        }
        self
    }

    /// The ENI whose mark the pod's packets get.
    #[inline(always)]
    #[must_use]
    pub const fn mark(&self) -> Option<u8> {
        if self.unmarked == 0 {
            Some(self.eni)
        } else {
            None
        }
    }

    /// True if this is the flow of a tuple, as [`super::Flow::is_of`].
    #[inline(always)]
    #[must_use]
    pub const fn is_of(&self, tuple: &PodTuple) -> bool {
        self.echo_pod == tuple.pod.fold()
            && self.echo_remote == tuple.remote.fold()
            && self.echo_pod_port == tuple.pod_port
            && self.echo_remote_port == tuple.remote_port
            && self.echo_protocol == tuple.protocol
    }
}

const _: () = assert!(size_of::<TrackedFlow>() == 40);
