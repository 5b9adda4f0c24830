//! Flow counts of the endpoints: keys and value of `QUOTA`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::bpf_spin_lock;

/// The identity of the host among endpoints.
pub const HOST: u32 = 0;

/// Key of `QUOTA` for the inbound flows of an endpoint; that of its translated flows is its identity
/// itself, which never has this bit.
#[inline(always)]
#[must_use]
pub const fn inbound_quota(endpoint: u32) -> u32 {
    endpoint | 1 << 31
}

/// The endpoint that a key of `QUOTA` is of.
#[inline(always)]
#[must_use]
pub const fn endpoint_of_quota(key: u32) -> u32 {
    key & !(1 << 31)
}

/// Value of `QUOTA`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Quota {
    /// Guards the count: a program of Linux 5.10 has no atomic operation that returns the result.
    pub lock: bpf_spin_lock,
    /// Flows of this kind that the endpoint has.
    pub flows: u32,
}

impl Quota {
    /// No flow.
    pub const NONE: Self = Self {
        lock: bpf_spin_lock::FREE,
        flows: 0,
    };
}
