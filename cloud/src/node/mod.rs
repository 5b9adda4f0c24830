//! One node: its state, its surroundings, and its next call of EC2.
//!
//! [`next()`] is a pure function of a [`Node`], its [`Progress`] and the [`World`]. The caller runs
//! [`begin`] before it carries out a step, and [`settle()`] after it. A crash in between loses only
//! the progress. The next operator reads the objects of EC2, and adopts, completes or deletes them.

mod condition;
mod deficit;
mod finish;
mod next;
mod progress;
pub mod release;
mod role;
mod settle;
mod share;
mod static_ip;
mod step;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use ipam::Time;
use jiff::Timestamp;

pub use self::condition::{Condition, Reason};
pub use self::next::{Next, next};
pub use self::progress::{Progress, Wait};
pub use self::release::Release;
pub use self::role::{Aside, Role};
pub use self::settle::{Context, Outcome, begin, settle};
pub use self::step::{Blocks, Create, Step};
use crate::elastic::{self, Claims, Listing};
use crate::groups::{Groups, Wish};
use crate::inventory::{Merged, Read};
use crate::object::subnet::{Location, Subnets};
use crate::place::Pressure;
use crate::pool::Pools;
use crate::want::{Demand, Requested, Watermarks};
use crate::{EniId, InstanceId, Inventory, Learned, Limits, Pauses, Tags};

/// A node, from its `CiliumNode` and its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its instance, once the document names it.
    pub instance: Option<InstanceId>,
    /// Its instance type, once the document names it.
    pub instance_type: Option<String>,
    /// The place of its ENIs, once the document names VPC and zone.
    pub location: Option<Location>,
    /// `ipam.cilium.io/ignore`: the operator leaves it alone.
    pub is_ignored: bool,
    /// The rules for its ENIs.
    pub rules: EniRules,
    /// The security groups of its ENIs.
    pub groups: Wish,
    /// The addresses that its agent wants.
    pub demand: Demand,
    /// The addresses that its agent wants of bound pools.
    pub pools: BTreeMap<String, Requested>,
    /// The bounds of its addresses.
    pub marks: Watermarks,
    /// Blocks and ENIs that go back.
    pub release: Release,
    /// ENIs in its status: its agent knows them.
    pub published: BTreeSet<EniId>,
    /// Pods on it that wait for an address.
    pub pending: u32,
}

/// The rules for a node's ENIs, from `spec.eni` and `spec.ipam`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EniRules {
    /// `first-interface-index`: ENIs below it are left alone.
    pub first_index: u16,
    /// `exclude-interface-tags`: ENIs with all of them are left alone.
    pub exclude_tags: Tags,
    /// ENIs get prefixes where the instance can have them.
    pub prefixes: bool,
    /// `use-primary-address`: ENIs give their own address as well.
    pub use_primary: bool,
    /// `delete-on-termination`: EC2 deletes the ENIs with the instance.
    pub delete_on_termination: bool,
    /// The Elastic IP address of the primary ENI.
    pub static_ip: elastic::Wish,
}

/// Facts that are read and change seldom.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Limits by instance type.
    pub limits: BTreeMap<String, Limits>,
    /// All subnets.
    pub subnets: Subnets,
    /// All security groups.
    pub groups: Groups,
    /// The pools that ENIs are bound to.
    pub pools: Pools,
    /// The Elastic IP addresses; none before they are read in this epoch.
    pub addresses: Option<Listing>,
    /// Tags of every ENI that is created, beside the own ones.
    pub eni_tags: Tags,
    /// Reads that began earlier are of another leader's time and do not count.
    pub epoch: Time,
}

/// Things that the operator learns as it goes. All of them can be lost.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The ENIs.
    pub inventory: Inventory,
    /// Limits that EC2 taught.
    pub learned: Learned,
    /// Room in subnets.
    pub pressure: Pressure,
    /// Calls that are paused.
    pub pauses: Pauses,
    /// Elastic IP addresses that calls are about.
    pub claims: Claims,
}

impl Memory {
    /// The memory of an operator that starts.
    #[must_use]
    pub fn new(cluster: &str) -> Self {
        Self {
            inventory: Inventory::new(cluster),
            learned: Learned::default(),
            pressure: Pressure::default(),
            pauses: Pauses::default(),
            claims: Claims::default(),
        }
    }

    /// Merges a read. What it shows can be more than a refusal seemed to say.
    pub fn merge(&mut self, read: &Read) -> Merged {
        let merged = self.inventory.merge(read);
        for instance in &merged.changed {
            let enis = self.inventory.of_instance(instance);
            self.learned.see(instance, enis);
        }
        merged
    }

    /// Forgets what holds no more.
    pub fn forget(&mut self, now: Time) {
        self.learned.forget(now);
        self.pressure.forget(now);
        self.pauses.forget(now);
    }
}

/// All that a node's next step follows from, beside the node.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
    /// The facts that are read.
    pub facts: &'a Facts,
    /// The memory of what was learned.
    pub memory: &'a Memory,
    /// The operator's own clock, which is never set.
    pub now: Time,
    /// The time of day, for tags and tokens.
    pub date: Timestamp,
}
