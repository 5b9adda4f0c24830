//! Which hosts of a subnet are whose: each node of the VPC has ENIs in the same subnets. Pure.
//!
//! ```text
//!   host   first node                        other nodes
//!     1    the router
//!    10    ENIs' own
//!    16    prefixes, where an ENI has several
//!    20    secondary addresses, 8 each
//!    64    prefixes, where an ENI has one
//!    96                                      addresses or prefixes: 48 of each node
//!   240                                      ENIs' own: 4 of each node
//! ```
//!
//! The first node may go beyond its part where it is alone.

use anyhow::{Result, ensure};

use crate::fabric::layout::Addressing;

/// Nodes that the VPC has room for beside the first.
pub const JOINED: u8 = 3;
/// Addresses of an ENI that has no prefixes.
pub(in crate::fabric) const ADDRESSES: u8 = 8;
/// Addresses of a prefix.
const PREFIX: u8 = 16;
/// Another node's addresses for pods in a subnet.
const PODS: u8 = 48;
/// Another node's ENIs in a subnet.
const OWN: u8 = 4;

/// The part of a subnet that one ENI has.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric) struct Share {
    /// The node, from 0.
    pub(in crate::fabric) node: u8,
    /// Which of the node's ENIs in the subnet it is.
    pub(in crate::fabric) index: u8,
}

impl Share {
    /// That the subnet has room for it.
    pub(in crate::fabric) fn check(self, addressing: Addressing) -> Result<()> {
        if self.node == 0 {
            return Ok(());
        }
        ensure!(
            self.node <= JOINED,
            "the VPC has room for {JOINED} nodes beside the first"
        );
        let each = match addressing {
            Addressing::Addresses => ADDRESSES,
            Addressing::Prefixes => PREFIX,
            Addressing::SeveralPrefixes(count) => count.saturating_mul(PREFIX),
        };
        ensure!(
            self.index < OWN && u16::from(each) * (u16::from(self.index) + 1) <= PODS.into(),
            "a subnet has no room for {} ENIs of node {} with {each} addresses each",
            self.index + 1,
            self.node
        );
        Ok(())
    }

    /// Its own host.
    pub(in crate::fabric) fn own(self) -> u8 {
        match self.node {
            0 => 10 + self.index,
            node => 240 + OWN * (node - 1) + self.index,
        }
    }

    /// The first of its secondary addresses.
    pub(in crate::fabric) fn addresses(self) -> u8 {
        match self.node {
            0 => 20 + ADDRESSES * self.index,
            node => Self::pods(node) + ADDRESSES * self.index,
        }
    }

    /// The first hosts of its prefixes.
    pub(in crate::fabric) fn prefixes(self, addressing: Addressing) -> Vec<u8> {
        let (first, count) = match (addressing, self.node) {
            (Addressing::Addresses, _) => (0, 0),
            (Addressing::Prefixes, 0) => (64, 1),
            (Addressing::Prefixes, node) => (Self::pods(node), 1),
            (Addressing::SeveralPrefixes(count), 0) => (16, count),
            (Addressing::SeveralPrefixes(count), node) => (Self::pods(node), count),
        };
        let mine = count * self.index..count * (self.index + 1);
        mine.map(|index| first + PREFIX * index).collect()
    }

    /// Which of the subnet's IPv6 prefixes is its.
    pub(in crate::fabric) fn prefix_v6(self) -> u16 {
        0xa + 0x10 * u16::from(self.node) + u16::from(self.index)
    }

    fn pods(node: u8) -> u8 {
        96 + PODS * (node - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_has_room_for_so_many_enis_and_no_more() {
        let check = |node, index, addressing| Share { node, index }.check(addressing);
        check(3, 0, Addressing::SeveralPrefixes(3)).unwrap();
        check(3, 0, Addressing::SeveralPrefixes(4)).unwrap_err();
        check(3, 1, Addressing::SeveralPrefixes(2)).unwrap_err();
        check(1, 2, Addressing::Prefixes).unwrap();
        check(1, 3, Addressing::Prefixes).unwrap_err();
        check(2, 3, Addressing::Addresses).unwrap();
        check(2, 4, Addressing::Addresses).unwrap_err();
        check(4, 0, Addressing::Addresses).unwrap_err();
    }
}
