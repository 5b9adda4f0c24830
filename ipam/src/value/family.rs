//! The address family, and addresses as numbers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// An address family. Whatever holds for one holds for the other, so code takes the family as a
/// value and is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "ipv4")]
    V4,
    /// IPv6.
    #[serde(rename = "ipv6")]
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    /// The family of a CIDR.
    #[must_use]
    pub fn of_net(net: IpNet) -> Self {
        Self::of(net.addr())
    }

    /// As configurations write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    /// The length of a single address's prefix.
    #[must_use]
    pub fn host_length(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The prefix that holds everything.
    #[must_use]
    pub fn default_route(self) -> IpNet {
        match self {
            Self::V4 => IpNet::V4(Ipv4Net::default()),
            Self::V6 => IpNet::V6(Ipv6Net::default()),
        }
    }

    /// The address that a number stands for. A number that is too large for IPv4 is cut; no caller
    /// makes one, for they only count within a CIDR.
    pub(crate) fn address(self, number: u128) -> IpAddr {
        match self {
            Self::V4 => {
                let [.., a, b, c, d] = number.to_be_bytes();
                Ipv4Addr::new(a, b, c, d).into()
            }
            Self::V6 => Ipv6Addr::from(number).into(),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An address as a number.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// True if two CIDRs have an address in common.
pub(crate) fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_numbers_go_both_ways() {
        for text in ["10.0.1.16", "255.255.255.255", "2001:db8::1", "::"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(Family::of(address).address(number(address)), address);
        }
    }
}
