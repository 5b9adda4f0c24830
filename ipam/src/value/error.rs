//! Why an address is not given.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::settings::Barrier;
use crate::{Barred, Counts, Family, Owner, Source, Time};

/// Reason for which an address is not allocated. A retry can help if
/// [`AllocateError::is_temporary`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The start is not over.
    #[error("no address is given yet: waiting for {}", barriers(waiting))]
    Restoring {
        /// The missing part.
        waiting: Vec<Barrier>,
    },
    /// The node does not use that family, or the pool has none of it.
    #[error("pool {pool} has no {family} addresses")]
    NoFamily {
        /// The pool.
        pool: String,
        /// The family.
        family: Family,
    },
    /// No ENI backs the pool, and packets from its addresses of that family could not leave the
    /// node.
    #[error(
        "the {family} addresses of pool {pool} are not given: no ENI backs it, so that they leave \
         masqueraded, and masquerade.{} is not set, nor plain-pools.native",
        family.name()
    )]
    NotMasqueraded {
        /// The pool.
        pool: String,
        /// The family.
        family: Family,
    },
    /// The node has no block of that pool. Blocks are requested: see [`Demand`](crate::Demand).
    #[error("pool {pool} is unknown on this node ({family}); blocks of it are requested")]
    UnknownPool {
        /// The pool.
        pool: String,
        /// The family.
        family: Family,
    },
    /// No address is left. More are requested: see [`Demand`](crate::Demand).
    #[error("pool {pool} has no {family} address left ({counts}); more are requested")]
    Exhausted {
        /// The pool.
        pool: String,
        /// The family.
        family: Family,
        /// Its addresses by state.
        counts: Counts,
    },
    /// Addresses are there, and what delivers them is not ready.
    #[error(
        "the {family} addresses of pool {pool} wait for {} to be ready",
        sources(waiting)
    )]
    NotReady {
        /// The pool.
        pool: String,
        /// The family.
        family: Family,
        /// The sources that are not ready.
        waiting: Vec<Source>,
    },
    /// The node has no such address.
    #[error("address {address} is in no block of this node")]
    NotInBlock {
        /// The address.
        address: IpAddr,
    },
    /// The address is another pool's.
    #[error("address {address} is not of pool {requested} but of {actual}")]
    OtherPool {
        /// The address.
        address: IpAddr,
        /// The requested pool.
        requested: String,
        /// The pool that it is of.
        actual: String,
    },
    /// The address is never given.
    #[error("address {address} of block {block} is never given: {why}")]
    Barred {
        /// The address.
        address: IpAddr,
        /// Its block.
        block: IpNet,
        /// Why.
        why: Barred,
    },
    /// Another owner has the address.
    #[error("address {address} is in use by {owner}")]
    InUse {
        /// The address.
        address: IpAddr,
        /// Its owner.
        owner: Owner,
    },
    /// The address was released a moment ago.
    #[error("address {address} cools down until {until} and until its last owner's flows are gone")]
    CoolingDown {
        /// The address.
        address: IpAddr,
        /// Until when at least.
        until: Time,
    },
    /// Nothing more is given from the block.
    #[error("nothing more is given from block {block}, which has {address}: {life}")]
    BlockDraining {
        /// The address.
        address: IpAddr,
        /// Its block.
        block: IpNet,
        /// Why.
        life: crate::Life,
    },
    /// The owner has an address of this family already, which is not the requested one.
    #[error("{owner} has the {} address {has} of pool {pool} already", Family::of(*has))]
    HasAnother {
        /// The owner that asks.
        owner: Owner,
        /// The address that it has.
        has: IpAddr,
        /// From which pool.
        pool: String,
    },
    /// The owner has an address whose block is gone: no ENI delivers it any more. Once it is
    /// released, another one can be requested.
    #[error("{owner} has address {address}, whose block {block} is gone")]
    Orphaned {
        /// The owner that asks.
        owner: Owner,
        /// The address that it has.
        address: IpAddr,
        /// The block that is gone.
        block: IpNet,
    },
    /// The pool's masquerade policy is not known yet.
    #[error("whether pool {pool} skips masquerade is not known yet")]
    PolicyUnknown {
        /// The pool.
        pool: String,
    },
}

impl AllocateError {
    /// True if the unchanged request can succeed later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Restoring { .. }
            | Self::UnknownPool { .. }
            | Self::Exhausted { .. }
            | Self::NotReady { .. }
            | Self::InUse { .. }
            | Self::CoolingDown { .. }
            | Self::BlockDraining { .. }
            | Self::PolicyUnknown { .. } => true,
            Self::NoFamily { .. }
            | Self::NotMasqueraded { .. }
            | Self::NotInBlock { .. }
            | Self::OtherPool { .. }
            | Self::Barred { .. }
            | Self::HasAnother { .. }
            | Self::Orphaned { .. } => false,
        }
    }
}

/// An owner has no address to claim: it expired, or was never given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{owner} has no address; one that is not claimed in time is taken back")]
pub struct NothingHeld {
    /// The owner of the claim.
    pub owner: Owner,
}

fn barriers(waiting: &[Barrier]) -> String {
    joined(waiting.iter())
}

fn sources(waiting: &[Source]) -> String {
    joined(waiting.iter())
}

fn joined<T: ToString>(items: impl Iterator<Item = T>) -> String {
    items
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}
