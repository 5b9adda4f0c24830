//! The state of the whole.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AllocationStatus, ClusterStatus, EniStatus, Health, NatStatus};
use crate::types::ForeignConfig;
use crate::types::ObjectKind;
use crate::types::{ForeignProgram, MissingFeature};

/// The agent's state: the answer to `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// The agent's version.
    pub version: String,
    /// Uptime, in seconds.
    pub uptime_seconds: u64,
    /// Health of the agent.
    pub health: Health,
    /// The node document.
    pub document: DocumentStatus,
    /// Settings that may have an unintended effect.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Notes on masquerade; `GET /v1/masquerade` has all of it.
    #[serde(default)]
    pub masquerade_notes: Vec<String>,
    /// Allocation of addresses; `GET /v1/pools` and `GET /v1/addresses` have all of it.
    #[serde(default)]
    pub allocation: AllocationStatus,
    /// The ENIs.
    pub enis: Vec<EniStatus>,
    /// Number of endpoints.
    pub endpoints: usize,
    /// Of these, the ones that do not work: owner and reason.
    pub endpoints_not_ready: BTreeMap<String, String>,
    /// Notes on endpoints that work, by owner.
    #[serde(default)]
    pub endpoint_notes: BTreeMap<String, String>,
    /// The eBPF side.
    pub datapath: DatapathStatus,
    /// Translated flows.
    pub nat: NatStatus,
    /// Flows of the host's service NAT.
    #[serde(default)]
    pub service_nat: ServiceNatStatus,
    /// Leftovers of network managers on ENIs. They are shown, never changed. None of them makes the
    /// node less ready by itself.
    #[serde(default)]
    pub foreign_config: Vec<ForeignConfig>,
    /// Rules of netfilter that packets of the direct path bypass, though they name pods, their
    /// devices or the metadata service, or clamp the MSS.
    ///
    /// Each comes with the remedy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bypassed_rules: Vec<String>,
    /// Leftovers of other CNIs. They are shown, never changed.
    pub leftovers: Vec<String>,
    /// Relation of the node to its cluster, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// Sysctls that affect Towpath.
    pub sysctls: Vec<SysctlStatus>,
    /// Repairs since the agent started.
    pub repairs: Repairs,
    /// Records of endpoints that could not be read, and where they are now.
    pub corrupt_records: Vec<PathBuf>,
}

/// The node document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DocumentStatus {
    /// Path of the document.
    pub path: PathBuf,
    /// Name of the node, once a good document was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Number of valid documents that were read since the start.
    pub generation: u64,
    /// Error of the newest document; the last valid one stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Fields of the document that are ignored, and the reasons.
    pub notes: Vec<String>,
    /// Refused entries of the document, while the rest applies: the field, its value, and what is
    /// expected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// The eBPF side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DatapathStatus {
    /// The path that pod traffic takes (`datapath.path`).
    #[serde(default)]
    pub path: PathMode,
    /// Features that the kernel has, by name.
    pub features: BTreeMap<String, Value>,
    /// Features that the kernel lacks and we use, with the consequence.
    #[serde(default)]
    pub missing_features: Vec<MissingFeature>,
    /// Foreign programs on our hooks.
    pub foreign_programs: Vec<ForeignProgram>,
}

/// Tracking of the host's service NAT; the datapath notes its flows, so that both directions take
/// the host's stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServiceNatStatus {
    /// The setting.
    pub mode: ServiceNat,
    /// True if flows are noted.
    pub notes: bool,
    /// Evidence of service NAT, if the setting makes the agent look for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// Number of flows that are cut off because none is noted: NAT has changed their addresses, a pod is in
    /// them, and connection tracking has seen no answer. Nothing where they are noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
    /// Features that do not work because of a setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The latest error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A sysctl that concerns us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SysctlStatus {
    /// Its name, as sysctl(8) takes it.
    pub name: String,
    /// The value that takes effect.
    pub effective: String,
    /// Effect of the value, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

/// Repairs since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Repairs {
    /// In all.
    pub total: u64,
    /// By the kind of object.
    pub by_kind: BTreeMap<ObjectKind, u64>,
    /// Objects that another controller changes repeatedly.
    pub wars: Vec<RepairWar>,
}

/// An object that another controller keeps changing back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairWar {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// The object, in words.
    pub object: String,
    /// Repairs of it within the last minute.
    pub count: usize,
    /// The possible other owner, and the remedy.
    pub hint: String,
}

/// Path of pod traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathMode {
    /// Bypasses the host's stack wherever possible.
    #[default]
    Direct,
    /// Through the host's stack in both directions, so that netfilter sees all of it.
    Stack,
}

/// Expectation of service NAT on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceNat {
    /// Expected as soon as such rules are seen, until the agent ends.
    #[default]
    Auto,
    /// Expected.
    On,
    /// Not expected.
    Off,
}
