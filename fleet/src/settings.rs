//! Settings of a fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud::call::budget::{Rate, SHARE};
use cloud::{Action, Tags, VpcId};
use kubernetes::operation::allocated::Compat;

/// The default time after which a block that no agent claims is released. Cilium's operator has the
/// same one (`--excess-ip-release-delay`).
pub(crate) const RELEASE_DELAY: Duration = Duration::from_mins(3);

/// Settings of a fleet.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster's name, by which its ENIs are known. It must not be empty.
    pub cluster: String,
    /// VPCs that are read beside those of the nodes.
    pub vpcs: BTreeSet<VpcId>,
    /// Tags of every ENI that is created.
    pub eni_tags: Tags,
    /// ENIs get prefixes where the instance can have them and its node does not refuse them.
    pub prefixes: bool,
    /// Policy for unneeded blocks, and for ENIs without a block.
    pub release: ReleaseMode,
    /// Time after which a block that no agent claims is released.
    pub release_delay: Duration,
    /// Waiting pods add to a node's demand.
    pub surge: bool,
    /// A node whose security-group tags match nothing gets the primary ENI's groups.
    pub primary_groups: bool,
    /// The time at which `pools.allocated` is written.
    pub compat: Compat,
    /// Plain pools.
    pub pools: PoolSettings,
    /// Spare addresses that are written into nodes without `pre-allocate`.
    pub pre_allocate: Option<u32>,
    /// The share of EC2's request rates that the operator uses, from 0 to 1.
    pub share: f64,
    /// Request rates of the account that differ from EC2's default ones.
    pub rates: BTreeMap<Action, Rate>,
    /// The longest time between two listings of all ENIs. Small clusters are listed more often.
    pub listing: Duration,
    /// The time between two reads of subnets, and of security groups.
    pub subnets: Duration,
    /// The time between two reads of VPCs, and of route tables.
    pub vpc_reads: Duration,
    /// Time of absence of its Node after which an object is deleted, if its instance is gone; never
    /// if unset.
    pub removal: Option<Duration>,
}

/// Policy for unneeded blocks, and for ENIs without a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseMode {
    /// They stay.
    Off,
    /// Blocks go back to EC2, and ENIs are deleted.
    On,
}

/// Settings of plain pools.
#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// Blocks of plain pools are granted.
    pub plain: bool,
    /// A node's `podCIDRs` become blocks of the default pool.
    pub migrate_pod_cidrs: bool,
    /// Nodes have the addresses that they can have as extended resources.
    pub advertised: bool,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            plain: true,
            migrate_pod_cidrs: false,
            advertised: false,
        }
    }
}

impl Settings {
    /// The defaults for a cluster.
    #[must_use]
    pub fn of(cluster: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            vpcs: BTreeSet::new(),
            eni_tags: Tags::new(),
            prefixes: false,
            release: ReleaseMode::Off,
            release_delay: RELEASE_DELAY,
            surge: true,
            primary_groups: false,
            compat: Compat::UntilAgent,
            pools: PoolSettings::default(),
            pre_allocate: None,
            share: SHARE,
            rates: BTreeMap::new(),
            listing: Duration::from_mins(5),
            subnets: Duration::from_mins(1),
            vpc_reads: Duration::from_mins(5),
            removal: Some(Duration::from_mins(5)),
        }
    }
}
