//! Settings: one type is the file's shape, its defaults, its help and its schema.

mod addresses;
mod cluster;
mod ec2;
mod eni;
mod explain;
mod pools;
mod serving;
#[cfg(test)]
mod tests;
mod values;

use std::path::{Path, PathBuf};

use document::{FileError, ReadError, nullable};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::addresses::{AddressesSection, Allocated, Release};
pub use self::cluster::{KubernetesSection, LeaseSection, TaintSection};
pub use self::ec2::{Ec2Section, RateSetting, ReadsSection};
pub use self::eni::{EniSection, GroupsFallback};
pub use self::explain::{example, schema};
pub use self::pools::{NewPool, NewSpace, PoolsSection};
pub use self::serving::{HttpSection, LogLevel, MetricsSection};
pub use self::values::{Calls, ClusterName, Count, NotAClusterName, Share, Span};
pub use document::settings::{Row, Source};

/// Settings of the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Name of the cluster, required. ENIs of the cluster carry it as a tag; never change it while
    /// there are any.
    pub cluster_name: Option<ClusterName>,
    /// Show every step and carry out none: true or false.
    pub dry_run: bool,
    /// Another operator that assigns addresses in this cluster (Cilium's in mode eni or multi-pool, Amazon
    /// VPC CNI): refuse (change nothing while it is there), or ignore.
    pub other_operator: OtherOperator,
    /// Lowest level of log lines: error, warn, info, debug or trace.
    pub log_level: LogLevel,
    /// API server.
    #[serde(deserialize_with = "nullable")]
    pub kubernetes: KubernetesSection,
    /// EC2 and its budgets.
    #[serde(deserialize_with = "nullable")]
    pub ec2: Ec2Section,
    /// ENIs that are created.
    #[serde(deserialize_with = "nullable")]
    pub eni: EniSection,
    /// Addresses of nodes.
    #[serde(deserialize_with = "nullable")]
    pub addresses: AddressesSection,
    /// Plain pools: each CiliumPodIPPool with CIDRs.
    #[serde(deserialize_with = "nullable")]
    pub pools: PoolsSection,
    /// Taint of nodes without a ready agent.
    #[serde(deserialize_with = "nullable")]
    pub taint: TaintSection,
    /// Requests of the command line and of probes.
    #[serde(deserialize_with = "nullable")]
    pub http: HttpSection,
    /// Metrics.
    #[serde(deserialize_with = "nullable")]
    pub metrics: MetricsSection,
}

/// The reaction to another operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum OtherOperator {
    /// Nothing is changed while it is there.
    #[default]
    Refuse,
    /// Both work. Each can take what the other gave.
    Ignore,
}

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: FileError,
    },
    /// The file has a key or a value that is not allowed.
    #[error("configuration {}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The key, and the values that are allowed.
        reason: ReadError,
    },
    /// The cluster has no name.
    #[error(
        "cluster-name: missing; expected the cluster's name, which distinguishes its ENIs from \
         those of other clusters; set it in the configuration file"
    )]
    NoCluster,
}

impl Config {
    /// The file that is read where no other one is given.
    pub const DEFAULT_PATH: &'static str = "/etc/towpath/operator.yaml";

    /// Reads a file. Without a path it is the default one, which may be missing.
    ///
    /// # Errors
    /// When the file cannot be read, or a key or value is not allowed.
    pub fn load(path: Option<&Path>) -> Result<(Self, String), ConfigError> {
        let at = path.unwrap_or(Path::new(Self::DEFAULT_PATH));
        let text = match document::read_file(at) {
            Ok(text) => text,
            Err(reason) if reason.is_missing() && path.is_none() => String::new(),
            Err(reason) => {
                let path = at.to_owned();
                return Err(ConfigError::Read { path, reason });
            }
        };
        let config = document::read(&text).map_err(|reason| ConfigError::Invalid {
            path: at.to_owned(),
            reason,
        })?;
        Ok((config, text))
    }

    /// The cluster's name.
    ///
    /// # Errors
    /// When it is not set.
    pub fn cluster(&self) -> Result<&ClusterName, ConfigError> {
        self.cluster_name.as_ref().ok_or(ConfigError::NoCluster)
    }
}
