//! Plain pools as their documents have them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::{EdgeRules, Family};

/// A plain pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSpec {
    /// The time at which it was created, in a form that sorts. Of two pools with one address, the
    /// earlier one has it.
    pub created: String,
    /// The first and the last address of its blocks.
    pub edges: EdgeRules,
    /// Its addresses.
    pub spaces: BTreeMap<Family, Space>,
    /// It is being deleted.
    pub is_deleted: bool,
}

/// The addresses of a pool's family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The CIDRs, in the order of the document.
    pub cidrs: Vec<IpNet>,
    /// The length of a block's prefix.
    pub mask: u8,
    /// Ranges that no block has an address of, each with its first and last address.
    pub reserved: Vec<(IpAddr, IpAddr)>,
}

/// A part of a pool that is not used. The rest of the pool works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A field changed that cannot change.
    #[error(
        "{field} cannot change from {from} to {to} while the pool exists: {from} stays in force; \
         create another pool"
    )]
    Changed {
        /// The field.
        field: &'static str,
        /// The value in force.
        from: String,
        /// The refused value.
        to: String,
    },
    /// The blocks would be larger than the CIDR.
    #[error(
        "CIDR {cidr} is refused: a block of maskSize {mask} is larger; expected a CIDR of /{mask} or wider"
    )]
    TooNarrow {
        /// The CIDR.
        cidr: IpNet,
        /// The length of a block's prefix.
        mask: u8,
    },
    /// The CIDR has too many blocks.
    #[error(
        "CIDR {cidr} is refused: it has more than {} blocks of maskSize {mask}; expected /{} or \
         narrower", 1_u32 << .width, .mask.saturating_sub(*.width)
    )]
    TooWide {
        /// The CIDR.
        cidr: IpNet,
        /// The length of a block's prefix.
        mask: u8,
        /// The most bits that may number blocks.
        width: u8,
    },
    /// The CIDR has addresses of something else.
    #[error(
        "CIDR {cidr} is refused: it overlaps with {other} of {owner}; expected addresses of its own"
    )]
    Overlap {
        /// The CIDR.
        cidr: IpNet,
        /// The other CIDR.
        other: IpNet,
        /// Its owner.
        owner: String,
    },
}
