//! Link-local addresses that endpoints use: key and value of `LINK_LOCALS`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Addr;

/// Key of `LINK_LOCALS`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LinkLocalKey {
    /// Host-side device of the endpoint.
    pub ifindex: u32,
    /// 0 for addresses that it sends from, 1 for addresses that it sends to.
    pub side: u32,
}

impl LinkLocalKey {
    /// Of addresses that an endpoint sends from.
    #[inline(always)]
    #[must_use]
    pub const fn source(ifindex: u32) -> Self {
        Self { ifindex, side: 0 }
    }

    /// Of addresses that an endpoint sends to.
    #[inline(always)]
    #[must_use]
    pub const fn destination(ifindex: u32) -> Self {
        Self { ifindex, side: 1 }
    }
}

/// Value of `LINK_LOCALS`: the addresses in the order of their first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LinkLocals(pub [Addr; Self::MOST]);

impl LinkLocals {
    /// Most addresses of an endpoint. A Linux host has one for each interface; a second one is
    /// there while it changes, and others are of interfaces that share the device.
    pub const MOST: usize = 4;
}
