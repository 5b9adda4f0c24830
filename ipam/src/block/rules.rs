//! Which addresses of a block can be given.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Family;
use crate::value::family::number;

/// The number of addresses of a block that are ever given, from its first one on. IPv6 blocks have
/// more than anybody could count; no node runs so many pods. Cilium has the same bound.
pub const WINDOW: u32 = 1 << 16;

/// Rules for the first and the last address of a block. Blocks of one or two addresses give all of
/// them in any case.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub struct EdgeRules {
    /// `allowFirstIP` of the pool.
    pub allow_first: bool,
    /// `allowLastIP` of the pool.
    pub allow_last: bool,
}

impl EdgeRules {
    /// Every address can be given: the cloud keeps none of an ENI's addresses and prefixes back.
    pub const ALL: Self = Self {
        allow_first: true,
        allow_last: true,
    };

    /// The number of addresses of a CIDR that these rules leave, without [`WINDOW`].
    #[must_use]
    pub fn usable(self, net: IpNet) -> u128 {
        self.usable_of_length(Family::of_net(net), net.prefix_len())
    }

    /// Addresses that these rules leave of a CIDR with a prefix of this length.
    #[must_use]
    pub fn usable_of_length(self, family: Family, length: u8) -> u128 {
        let bits = u32::from(family.host_length().saturating_sub(length));
        let size = 1_u128.checked_shl(bits).unwrap_or(u128::MAX);
        if size <= 2 {
            return size;
        }
        size - u128::from(!self.allow_first) - u128::from(!self.allow_last)
    }
}

/// Why an address of a block cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Barred {
    /// The pool does not allow it.
    #[error("it is the block's first address, and the pool has no allowFirstIP")]
    First,
    /// The pool does not allow it.
    #[error("it is the block's last address, and the pool has no allowLastIP")]
    Last,
    /// The caller excludes it.
    #[error("it is excluded")]
    Excluded,
    /// It is not among the first [`WINDOW`] addresses.
    #[error("only the first {WINDOW} addresses of a block are given")]
    OutsideWindow,
}

/// A block's addresses by their place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    net: IpNet,
    edges: EdgeRules,
}

impl Space {
    pub(crate) fn new(net: IpNet, edges: EdgeRules) -> Self {
        let net = net.trunc();
        Self { net, edges }
    }

    pub(crate) fn net(&self) -> IpNet {
        self.net
    }

    pub(crate) fn edges(&self) -> EdgeRules {
        self.edges
    }

    /// Number of addresses, at most [`WINDOW`].
    pub(crate) fn size(&self) -> u32 {
        let bits = u32::from(self.net.max_prefix_len() - self.net.prefix_len());
        1_u32.checked_shl(bits).map_or(WINDOW, |n| n.min(WINDOW))
    }

    /// The places that the edge rules leave, from the first to one past the last.
    pub(crate) fn inner(&self) -> (u32, u32) {
        let size = self.size();
        if size <= 2 {
            return (0, size);
        }
        let first = u32::from(!self.edges.allow_first);
        (first, size - u32::from(!self.edges.allow_last))
    }

    /// An address's place; `None` where the block has none for it.
    pub(crate) fn place(&self, address: IpAddr) -> Option<u32> {
        if !self.net.contains(&address) {
            return None;
        }
        let offset = number(address) - number(self.net.addr());
        u32::try_from(offset).ok().filter(|n| *n < self.size())
    }

    pub(crate) fn address(&self, place: u32) -> IpAddr {
        let family = Family::of_net(self.net);
        family.address(number(self.net.addr()) + u128::from(place))
    }

    /// The places of a CIDR's addresses, from the first to one past the last; `None` if there are
    /// none.
    pub(crate) fn places(&self, net: IpNet) -> Option<(u32, u32)> {
        if net.contains(&self.net) {
            return Some((0, self.size()));
        }
        let first = self.place(net.network())?;
        let last = self.place(net.broadcast()).unwrap_or(self.size() - 1);
        Some((first, last + 1))
    }
}
