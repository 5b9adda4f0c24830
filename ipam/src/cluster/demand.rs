//! The demand of nodes, and the answers to it.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::Family;

/// The addresses of a pool that a node wants in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// IPv4 addresses.
    pub ipv4: u32,
    /// IPv6 addresses.
    pub ipv6: u32,
}

impl Needed {
    /// The number of a family.
    #[must_use]
    pub fn of(self, family: Family) -> u32 {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }
}

/// The addresses that a node wants, by pool.
pub type Requested = BTreeMap<String, Needed>;

/// Blocks by pool.
pub type Blocks = BTreeMap<String, BTreeSet<IpNet>>;

/// The answer to a node's demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Blocks that the node does not have yet.
    pub blocks: Blocks,
    /// Demand that cannot be met.
    pub shortfalls: Vec<Shortfall>,
}

/// Demand that cannot be met, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Shortfall {
    /// There is no such pool.
    #[error("there is no CiliumPodIPPool {pool}; create it, or correct the name in the annotation")]
    Unknown {
        /// The pool.
        pool: String,
    },
    /// The pool is being deleted.
    #[error("CiliumPodIPPool {pool} is being deleted and gives no more blocks")]
    Deleted {
        /// The pool.
        pool: String,
    },
    /// The pool has no CIDR of the family that can be used.
    #[error("CiliumPodIPPool {pool} has no usable {family} CIDR")]
    NoCidr {
        /// The pool.
        pool: String,
        /// The family.
        family: Family,
    },
    /// All blocks are taken.
    #[error(
        "CiliumPodIPPool {pool} has no free {family} block; {missing} addresses are missing; add a CIDR"
    )]
    Full {
        /// The pool.
        pool: String,
        /// The family.
        family: Family,
        /// The addresses that are missing.
        missing: u128,
    },
}

impl Shortfall {
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &str {
        match self {
            Self::Unknown { pool }
            | Self::Deleted { pool }
            | Self::NoCidr { pool, .. }
            | Self::Full { pool, .. } => pool,
        }
    }
}
