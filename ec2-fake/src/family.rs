//! The figures in which IPv4 and IPv6 differ.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub fn of(address: &IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Bits of an address.
    #[must_use]
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The length of the prefixes that EC2 delegates.
    #[must_use]
    pub fn block_length(self) -> u8 {
        match self {
            Self::V4 => 28,
            Self::V6 => 80,
        }
    }

    /// Addresses of such a prefix.
    #[must_use]
    pub fn block_size(self) -> u128 {
        1 << (self.bits() - self.block_length())
    }

    /// An address as a number.
    #[must_use]
    pub fn number(self, address: &IpAddr) -> u128 {
        match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        }
    }

    /// The address of a number; a number beyond the family's range becomes the last address.
    #[must_use]
    pub fn address(self, number: u128) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            Self::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }
}
