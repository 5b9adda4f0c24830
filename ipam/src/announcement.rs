//! The node's blocks, by some document.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnet::IpNet;

use crate::{EdgeRules, Family, Lease, Source};

/// Everything that the node has. It replaces what was announced before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The blocks.
    pub blocks: Vec<AnnouncedBlock>,
    /// The families of known pools, with or without blocks on the node. A pool that is not named
    /// here may give both.
    pub pools: BTreeMap<String, BTreeSet<Family>>,
    /// The number of addresses of the default pool that are kept in store, where the node says so
    /// (`spec.ipam.pre-allocate`); 0 and `None` leave it to the settings.
    pub pre_allocate: Option<u32>,
    /// The blocks that the node has claimed, as the document says.
    pub claimed: BTreeSet<IpNet>,
    /// True if the operator takes back unclaimed blocks only for the document's current version. So
    /// a block can be claimed again at any time.
    pub is_versioned: bool,
    /// Addresses that are never given, such as the node's own.
    pub excluded: BTreeSet<IpNet>,
    /// Pools that no ENI backs, each with a family that is not masqueraded. The node's blocks of
    /// them are left out, because their addresses are not routed outside of the node.
    pub not_masqueraded: BTreeSet<(String, Family)>,
    /// Pools that no device backs. The node's demand for them is always rounded up, whatever the
    /// settings for other pools, and unneeded blocks are released.
    pub plain: BTreeSet<String>,
    /// The parts that the reader left out or doubts, for the status.
    pub problems: Vec<Problem>,
}

/// A block that the node has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncedBlock {
    /// The block.
    pub cidr: IpNet,
    /// Its source.
    pub source: Source,
    /// Its pool; `None` if that is unknown, so that nothing is allocated from it.
    pub pool: Option<String>,
    /// The rules for its first and last address.
    pub edges: EdgeRules,
}

impl fmt::Display for AnnouncedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pool = self.pool.as_deref().unwrap_or("undecided");
        write!(f, "{} ({}, pool {pool})", self.cidr, self.source)
    }
}

/// Something in an announcement that does not hold together. The rest of it counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Problem {
    /// A block is left out because another one has its addresses.
    #[error("block {block} is left out: it overlaps block {other}")]
    Overlap {
        /// The one that is left out.
        block: AnnouncedBlock,
        /// The one that stays.
        other: AnnouncedBlock,
    },
    /// Two pools or more are bound to one ENI: it serves none of them.
    #[error(
        "ENI {eni} serves no pool: pools {} are all bound to it; one of them may be",
        pools.join(" and ")
    )]
    TwoPools {
        /// The ENI's id.
        eni: String,
        /// The pools, in order of their names.
        pools: Vec<String>,
    },
    /// A pool is bound by tags of subnets, and the tags of this ENI's subnet are not known.
    #[error(
        "ENI {eni} serves no pool: the tags of its subnet {subnet} are not known, and pool {pool} \
         is bound by them"
    )]
    SubnetTagsUnknown {
        /// The ENI's id.
        eni: String,
        /// The subnet's id.
        subnet: String,
        /// The pool; the first one where there are several.
        pool: String,
    },
    /// A block that was allocated to a pool of ENIs is on none.
    #[error("block {block} of pool {pool} is left out: no ENI of the node has it")]
    OnNoEni {
        /// The block.
        block: IpNet,
        /// The pool.
        pool: String,
    },
    /// A block of a pool that no ENI backs is within the VPC, which delivers such addresses only to
    /// ENIs.
    #[error(
        "block {block} of pool {pool} is left out: it is of the VPC's CIDRs, and no ENI of the node \
         has it"
    )]
    WithinVpc {
        /// The block.
        block: IpNet,
        /// The pool.
        pool: String,
    },
    /// A block of a pool that no ENI backs is of a family that is not masqueraded, and the VPC does
    /// not route it.
    #[error(
        "block {block} of pool {pool} is left out: no ENI backs it, so that its addresses leave \
         masqueraded, and masquerade.{} is not set, nor plain-pools.native",
        Family::of_net(*block).name()
    )]
    NotMasqueraded {
        /// The block.
        block: IpNet,
        /// The pool.
        pool: String,
    },
    /// A plain pool asks to skip masquerade, and the VPC does not route it.
    #[error(
        "pool {pool} is masqueraded despite its skip-masquerade annotation: no ENI backs it, and \
         plain-pools.native is not set"
    )]
    PlainPoolSkips {
        /// The pool.
        pool: String,
    },
}

/// The changes by an announcement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Blocks that the node did not have before.
    pub appeared: Vec<IpNet>,
    /// Blocks that the node has no more.
    pub went: Vec<IpNet>,
    /// Leases that lost their block by this, or have none after a start. Their owners still have
    /// the addresses, to which no packets are delivered any more.
    pub orphaned: Vec<Lease>,
    /// Contradictions.
    pub problems: Vec<Problem>,
}
