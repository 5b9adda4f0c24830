//! Flows from the outside: value of `INBOUND`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::flow::{PodTuple, bpf_spin_lock, fold};

/// Value of `INBOUND`: a flow that was opened from outside the exempt destinations, and whose
/// answers are not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inbound {
    /// When its last packet passed, in jiffies.
    pub last_seen: u64,
    /// Guards `dead`, and `last_seen` of a flow that has been idle.
    pub lock: bpf_spin_lock,
    /// What packets from the pod have shown; bits of [`crate::progress`].
    pub progress_out: u8,
    /// What packets from the outside have shown, of TCP alone; bits of [`crate::progress`].
    pub progress_in: u8,
    /// Not 0 once the flow is about to be removed: then it is as good as gone.
    pub dead: u8,
    echo_protocol: u8,
    /// Whose it is, and whose quota it counts for: [`super::AddressEntry::identity`] of the endpoint.
    pub endpoint: u32,
    echo_pod: u32,
    echo_remote: u32,
    echo_pod_port: u16,
    echo_remote_port: u16,
}

impl Inbound {
    /// A value.
    #[inline(always)]
    #[must_use]
    pub const fn new(tuple: &PodTuple, now: u64, endpoint: u32, progress_out: u8) -> Self {
        Self {
            last_seen: now,
            lock: bpf_spin_lock::FREE,
            progress_out,
            progress_in: 0,
            dead: 0,
            echo_protocol: tuple.protocol,
            endpoint,
            echo_pod: fold(tuple.pod),
            echo_remote: fold(tuple.remote),
            echo_pod_port: tuple.pod_port,
            echo_remote_port: tuple.remote_port,
        }
    }

    /// Whether this is the flow of a tuple, as [`super::Flow::is_of`].
    #[inline(always)]
    #[must_use]
    pub const fn is_of(&self, tuple: &PodTuple) -> bool {
        self.echo_pod == fold(tuple.pod)
            && self.echo_remote == fold(tuple.remote)
            && self.echo_pod_port == tuple.pod_port
            && self.echo_remote_port == tuple.remote_port
            && self.echo_protocol == tuple.protocol
    }
}

const _: () = assert!(size_of::<Inbound>() == 32);
