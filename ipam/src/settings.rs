//! The settings of a kind of resource.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::{Family, Formula, PreAllocation};

/// Name of the pool that is meant when none is named.
pub const DEFAULT_POOL: &str = "default";

/// The time that an address is given only where no other one is free, counted from its release. A
/// client that got no answer goes on for that long: conntrack keeps its flow for 120 seconds
/// (`SYN_SENT`), and Linux sends a SYN again for 127 (`tcp_syn_retries` is 6).
pub(crate) const REST: Duration = Duration::from_secs(130);

/// The settings of an [`Allocator`](crate::Allocator).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The families that addresses are given of.
    pub families: BTreeSet<Family>,
    /// The enabled families, of which addresses are pre-allocated even if the node has none. Of the
    /// other families, some are pre-allocated if the node has blocks, or if an owner has or awaits
    /// an address.
    pub in_store: BTreeSet<Family>,
    /// The pool that is meant when none is named.
    pub default_pool: String,
    /// The formula of demand.
    pub formula: Formula,
    /// The number of addresses of each pool that are kept in store.
    pub pre_allocation: PreAllocation,
    /// The time that a released address is kept back.
    pub cooldown: Duration,
    /// The time that a lease waits for its claim.
    pub unclaimed: Duration,
    /// The time that a request that failed counts as demand, from its last attempt on.
    pub waiting: Duration,
    /// Blocks of devices are released and reclaimed
    /// ([`Allocator::balance`](crate::Allocator::balance)). Addresses of a block are allocated only
    /// while the document lists it as claimed.
    pub release: bool,
    /// The barriers before the first address is given.
    pub barriers: BTreeSet<Barrier>,
}

impl Default for Settings {
    /// Both families and both barriers that are named here; the delays of Cilium, and the VPC
    /// CNI's cooldown.
    fn default() -> Self {
        Self {
            families: Family::ALL.into(),
            in_store: Family::ALL.into(),
            default_pool: DEFAULT_POOL.to_owned(),
            formula: Formula::RoundedUp,
            pre_allocation: PreAllocation::default(),
            cooldown: Duration::from_secs(30),
            unclaimed: Duration::from_mins(10),
            waiting: Duration::from_mins(5),
            release: false,
            barriers: [Barrier::DOCUMENT, Barrier::POOLS].into(),
        }
    }
}

/// Something that has to have happened before the first address is given, and before a block is
/// given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Barrier(&'static str);

impl Barrier {
    /// The document that names the node's blocks has been read. The first
    /// [`Allocator::observe`](crate::Allocator::observe) lifts it.
    pub const DOCUMENT: Self = Self("the node document");
    /// The pools must have been read. The caller lifts it.
    pub const POOLS: Self = Self("the pools");

    /// A barrier of the caller's own, by what it waits for. The caller lifts it.
    #[must_use]
    pub const fn new(waits_for: &'static str) -> Self {
        Self(waits_for)
    }
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
