//! Sections `ipam`, `plain-pools` and `cni`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipam::{Barrier, DEFAULT_POOL, Family, Formula, PreAllocation, Settings};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use towpath_cni::request::config::STATE_DIR;
use towpath_cni::state::queue::FOLDER;

use super::values::{AbsolutePath, refused, within};

/// Section `ipam`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct IpamSection {
    /// Allocate pods' addresses: true, or false (each request brings its own). docs/guide/ipam.md
    /// explains it.
    pub enabled: bool,
    /// Families of pods whose request names none: `[ipv4]`, `[ipv6]` or `[ipv4, ipv6]`. A node
    /// without IPv4 needs `[ipv6]`.
    pub families: Families,
    /// Pool of requests that name none. ENIs that no pool is bound to serve it.
    pub default_pool: PoolName,
    /// Spare addresses that the node requests, by pool: default=8,blue=16.
    pub pre_allocate: PreAllocate,
    /// Seconds that a released address is kept back, and then until its last owner's flows are
    /// gone; 0 to 86400; 0: neither.
    pub cooldown: Seconds<0>,
    /// Seconds after which an unclaimed address expires, 10 to 86400.
    pub unclaimed: Seconds<10>,
    /// Release unneeded blocks of ENIs to the operator: off or on. Set it only where the operator
    /// releases addresses; otherwise pods can run short of them.
    pub release: Release,
}

/// The fate of ENIs' blocks that are not needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// The node keeps what it has.
    #[default]
    Off,
    /// Blocks go back, and each is claimed before addresses of it are given.
    On,
}

impl Default for IpamSection {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            enabled: true,
            families: Families([Family::V4].into()),
            default_pool: PoolName(DEFAULT_POOL.to_owned()),
            pre_allocate: PreAllocate(settings.pre_allocation),
            cooldown: Seconds(settings.cooldown),
            unclaimed: Seconds(settings.unclaimed),
            release: Release::default(),
        }
    }
}

impl IpamSection {
    /// Settings of the allocator. `barrier` adds one to the two of its own.
    #[must_use]
    pub fn settings(&self, barrier: Barrier) -> Settings {
        Settings {
            // Both: an explicit request may be for a family that is not given by default.
            families: Family::ALL.into(),
            in_store: self.families.get().clone(),
            default_pool: self.default_pool.0.clone(),
            formula: Formula::Linear,
            pre_allocation: self.pre_allocate.0.clone(),
            cooldown: self.cooldown.get(),
            unclaimed: self.unclaimed.get(),
            release: self.release == Release::On,
            barriers: [Barrier::DOCUMENT, Barrier::POOLS, barrier].into(),
            ..Settings::default()
        }
    }
}

/// Section `plain-pools`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PlainPoolsSection {
    /// The VPC routes the addresses of pools without an ENI, so they may skip masquerade: true or
    /// false.
    pub native: bool,
}

/// Section `cni`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CniSection {
    /// Folder of the deletes that the CNI plugin stores while no agent answers: an absolute path
    /// that ends with pending-deletes. `towpath cni install` writes it into the plugin's
    /// configuration.
    pub pending_deletes: PendingDeletes,
    /// Folder of container runtimes' network configurations. It shows if they use another CNI
    /// (node.other-cni).
    pub conf_dir: AbsolutePath,
}

/// The folder in which the CNI plugin leaves deletes: one in the plugin's state folder, by a name
/// that the plugin knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "PathBuf", into = "PathBuf")]
pub struct PendingDeletes {
    state_dir: PathBuf,
}

impl PendingDeletes {
    /// The folder.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.state_dir.join(FOLDER)
    }

    /// The plugin's state folder.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }
}

/// A path is not one of a folder of deletes.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is refused; allowed: an absolute path that ends with {FOLDER} (/run/towpath/cni/{FOLDER})"
)]
pub struct NotPendingDeletes(PathBuf);

impl TryFrom<PathBuf> for PendingDeletes {
    type Error = NotPendingDeletes;

    fn try_from(path: PathBuf) -> Result<Self, NotPendingDeletes> {
        match path.parent() {
            Some(parent) if path.is_absolute() && path.ends_with(FOLDER) => Ok(Self {
                state_dir: parent.to_owned(),
            }),
            _ => Err(NotPendingDeletes(path)),
        }
    }
}

impl From<PendingDeletes> for PathBuf {
    fn from(folder: PendingDeletes) -> Self {
        folder.path()
    }
}

impl Default for CniSection {
    fn default() -> Self {
        Self {
            pending_deletes: PendingDeletes {
                state_dir: STATE_DIR.into(),
            },
            conf_dir: AbsolutePath::known("/etc/cni/net.d"),
        }
    }
}

/// The families that pods get addresses of; one at least.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(extend("items" = {"enum": ["ipv4", "ipv6"]}, "minItems" = 1))]
pub struct Families(#[schemars(with = "Vec<String>")] BTreeSet<Family>);

impl Families {
    /// The families.
    #[must_use]
    pub fn get(&self) -> &BTreeSet<Family> {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Families {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let families = Vec::deserialize(deserializer)?;
        if families.is_empty() {
            return Err(refused(&families, "ipv4, ipv6 or both ([ipv4, ipv6])"));
        }
        Ok(Self(families.into_iter().collect()))
    }
}

/// The name of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PoolName(String);

impl PoolName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for PoolName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name.is_empty() {
            return Err(refused(&name, "the name of a pool (default)"));
        }
        Ok(Self(name))
    }
}

/// Number of spare addresses of each pool, as text.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct PreAllocate(#[schemars(with = "String")] PreAllocation);

impl Serialize for PreAllocate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PreAllocate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// A time in whole seconds, `MIN` at least and a day at most.
#[derive(Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(extend("minimum" = MIN, "maximum" = Self::MAX))]
pub struct Seconds<const MIN: u64>(#[schemars(with = "u64")] Duration);

impl<const MIN: u64> Seconds<MIN> {
    /// A day.
    const MAX: u64 = 86_400;

    /// One of the defaults, which are within the bounds.
    pub(super) const fn new(time: Duration) -> Self {
        Self(time)
    }

    /// The time.
    #[must_use]
    pub fn get(self) -> Duration {
        self.0
    }
}

impl<const MIN: u64> fmt::Debug for Seconds<MIN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<const MIN: u64> Serialize for Seconds<MIN> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0.as_secs())
    }
}

impl<'de, const MIN: u64> Deserialize<'de> for Seconds<MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = within(deserializer, MIN..=Self::MAX, " seconds")?;
        Ok(Self(Duration::from_secs(seconds)))
    }
}
