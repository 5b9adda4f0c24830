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
    /// ENIs.
    pub enis: EniSettings,
    /// Policy for unneeded blocks, and for ENIs without a block.
    pub release: ReleaseMode,
    /// Time after which a block that no agent claims is released.
    pub release_delay: Duration,
    /// Waiting pods add to a node's demand.
    pub surge: bool,
    /// The time at which `pools.allocated` is written.
    pub compat: Compat,
    /// Plain pools.
    pub pools: PoolSettings,
    /// Spare addresses that are written into nodes without `pre-allocate`.
    pub pre_allocate: Option<u32>,
    /// EC2's request rates.
    pub rates: RateSettings,
    /// Times between reads of EC2.
    pub reads: ReadSettings,
    /// Time of absence of its Node after which an object is deleted, if its instance is gone; never
    /// if unset.
    pub removal: Option<Duration>,
}

/// Settings of ENIs.
#[derive(Clone, Debug, Default)]
pub struct EniSettings {
    /// Tags of every ENI that is created.
    pub tags: Tags,
    /// ENIs get prefixes where the instance can have them and its node does not refuse them.
    pub prefixes: bool,
    /// A node whose security-group tags match nothing gets the primary ENI's groups.
    pub primary_groups: bool,
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

/// EC2's request rates.
#[derive(Clone, Debug)]
pub struct RateSettings {
    /// The share of them that the operator uses, from 0 to 1.
    pub share: f64,
    /// Request rates of the account that differ from EC2's default ones.
    pub own: BTreeMap<Action, Rate>,
}

impl Default for RateSettings {
    fn default() -> Self {
        Self {
            share: SHARE,
            own: BTreeMap::new(),
        }
    }
}

/// Times between reads of EC2.
#[derive(Clone, Copy, Debug)]
pub struct ReadSettings {
    /// The longest time between two listings of all ENIs. Small clusters are listed more often.
    pub enis: Duration,
    /// The time between two reads of subnets, and of security groups.
    pub subnets: Duration,
    /// The time between two reads of VPCs, and of route tables.
    pub network: Duration,
}

impl Default for ReadSettings {
    fn default() -> Self {
        Self {
            enis: Duration::from_mins(5),
            subnets: Duration::from_mins(1),
            network: Duration::from_mins(5),
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
            enis: EniSettings::default(),
            release: ReleaseMode::Off,
            release_delay: RELEASE_DELAY,
            surge: true,
            compat: Compat::UntilAgent,
            pools: PoolSettings::default(),
            pre_allocate: None,
            rates: RateSettings::default(),
            reads: ReadSettings::default(),
            removal: Some(Duration::from_mins(5)),
        }
    }
}
