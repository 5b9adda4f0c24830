//! Flow counts of the endpoints: keys and value of `QUOTA`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{DEFAULT_FLOWS_V6, DEFAULT_INBOUND, bpf_spin_lock};

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

/// Most flows of one owner, so that none uses up the shared room. Settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowQuotas {
    /// Translated flows of one endpoint.
    pub endpoint: u32,
    /// Inbound flows of one endpoint.
    pub inbound: u32,
    /// Flows of the host.
    pub host: u32,
}

impl FlowQuotas {
    /// Two thirds of the ports that one destination can be reached by, a quarter of all inbound
    /// flows, and half of all IPv6 flows.
    pub const DEFAULT: Self = Self {
        endpoint: 16_384,
        inbound: DEFAULT_INBOUND / 4,
        host: DEFAULT_FLOWS_V6 / 2,
    };

    /// The most flows that a key of `QUOTA` may count.
    #[must_use]
    pub const fn of(&self, key: u32) -> u32 {
        if key == HOST {
            self.host
        } else if key == endpoint_of_quota(key) {
            self.endpoint
        } else {
            self.inbound
        }
    }
}

impl Default for FlowQuotas {
    fn default() -> Self {
        Self::DEFAULT
    }
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
