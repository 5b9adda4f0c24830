//! Entry of one ENI in the datapath.

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
    v4: EniAddresses,
    v6: EniAddresses,
}

/// Addresses of one family that an ENI has.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct EniAddresses {
    /// The next hop; unspecified where there is none.
    pub gateway: Addr,
    /// The translation address: what masqueraded packets carry that leave by this ENI. Unspecified
    /// where it has none; then nothing is masqueraded by it.
    pub snat: Addr,
    /// Number of the ENI by which masqueraded packets leave whose source this ENI owns.
    pub external: u8,
    reserved: u8,
    /// Most ports of the reserve of a destination that one endpoint may have
    /// ([`crate::ports::Ports::share`]); 0 for any number.
    pub share: u16,
    reserved_too: u32,
}

impl EniAddresses {
    /// No next hop, no translation address.
    pub const NONE: Self = Self::new(Addr::UNSPECIFIED, Addr::UNSPECIFIED, 0);

    /// The addresses of a family.
    #[must_use]
    pub const fn new(gateway: Addr, snat: Addr, external: u8) -> Self {
        Self {
            gateway,
            snat,
            external,
            reserved: 0,
            share: 0,
            reserved_too: 0,
        }
    }

    /// These addresses with a share of the reserve.
    #[must_use]
    pub const fn with_share(self, share: u16) -> Self {
        Self { share, ..self }
    }
}

impl EniEntry {
    /// The entry of an ENI that is not there or not ready.
    pub const ABSENT: Self = Self::new(0, 0, EniAddresses::NONE, EniAddresses::NONE);

    /// The entry of a ready ENI.
    #[must_use]
    pub const fn new(ifindex: u32, mtu: u32, v4: EniAddresses, v6: EniAddresses) -> Self {
        Self {
            ifindex,
            mtu,
            v4,
            v6,
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

    /// IPv4 addresses of the ENI.
    #[inline(always)]
    #[must_use]
    pub const fn v4(&self) -> &EniAddresses {
        &self.v4
    }

    /// IPv6 addresses of the ENI.
    #[inline(always)]
    #[must_use]
    pub const fn v6(&self) -> &EniAddresses {
        &self.v6
    }
}
