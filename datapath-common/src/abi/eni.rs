//! What the datapath knows of one ENI.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Addr;

/// Value of the `ENIS` map. All zero: the node has no such ENI, or it is not ready.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct EniEntry {
    /// Device of the ENI, 0 while it is not ready.
    ifindex: u32,
    /// MTU of the device, without the Ethernet header, in bytes.
    mtu: u32,
    /// Next hop for IPv4, as it lies in a packet.
    gateway_v4: u32,
    reserved: u32,
    /// Next hop for IPv6.
    gateway_v6: Addr,
}

impl EniEntry {
    /// The entry of an ENI that is not there or not ready.
    pub const ABSENT: Self = Self {
        ifindex: 0,
        mtu: 0,
        gateway_v4: 0,
        reserved: 0,
        gateway_v6: Addr::UNSPECIFIED,
    };

    /// The entry of a ready ENI. `gateway_v4` is the word as it lies in a packet.
    #[must_use]
    pub const fn new(ifindex: u32, mtu: u32, gateway_v4: u32, gateway_v6: Addr) -> Self {
        Self {
            ifindex,
            mtu,
            gateway_v4,
            reserved: 0,
            gateway_v6,
        }
    }

    /// Device of the ENI, 0 while it is not ready.
    #[inline(always)]
    #[must_use]
    pub const fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// MTU of the device, in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Next hop for IPv4, as it lies in a packet.
    #[inline(always)]
    #[must_use]
    pub const fn gateway_v4(&self) -> u32 {
        self.gateway_v4
    }

    /// Next hop for IPv6.
    #[inline(always)]
    #[must_use]
    pub const fn gateway_v6(&self) -> Addr {
        self.gateway_v6
    }
}
