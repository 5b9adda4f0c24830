//! The state of the whole.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AllocationStatus, ClusterStatus, EniStatus, Health, NatStatus};
use crate::types::ObjectKind;
use crate::types::Trace;
use crate::types::{ForeignProgram, MissingFeature};

/// The agent's state: the answer to `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// The agent's version.
    pub version: String,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Its health.
    pub health: Health,
    /// The node document.
    pub document: DocumentStatus,
    /// Settings of the agent that users may not have meant.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Notes on masquerade; the whole of it is `GET /v1/masquerade`.
    #[serde(default)]
    pub masquerade_notes: Vec<String>,
    /// The state of allocation; the whole of it is `GET /v1/pools` and `GET /v1/addresses`.
    #[serde(default)]
    pub allocation: AllocationStatus,
    /// The ENIs.
    pub enis: Vec<EniStatus>,
    /// Number of endpoints.
    pub endpoints: usize,
    /// Of these, the ones that do not work: owner and reason.
    pub endpoints_not_ready: BTreeMap<String, String>,
    /// Notes on endpoints that work: owner and note.
    #[serde(default)]
    pub endpoint_notes: BTreeMap<String, String>,
    /// The eBPF side.
    pub datapath: DatapathStatus,
    /// Translated flows.
    pub nat: NatStatus,
    /// Flows of the host's service NAT.
    #[serde(default)]
    pub service_nat: ServiceNatStatus,
    /// Configuration that network managers left on ENIs. Shown, never touched; none of it makes the
    /// node less ready by itself.
    #[serde(default)]
    pub traces: Vec<Trace>,
    /// Rules of netfilter that packets of the direct path do not meet, though they name pods, their
    /// devices or the metadata service, or clamp the MSS; each with the remedy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bypassed_rules: Vec<String>,
    /// Leftovers of other CNIs. Shown, never touched.
    pub leftovers: Vec<String>,
    /// The state of the cluster, if the node is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// Sysctls that concern us.
    pub sysctls: Vec<SysctlStatus>,
    /// The repairs since the agent's start.
    pub repairs: Repairs,
    /// Records of endpoints that could not be read, and where they are now.
    pub corrupt_records: Vec<PathBuf>,
}

/// The node document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DocumentStatus {
    /// Where it is.
    pub path: PathBuf,
    /// Name of the node, once a good document was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Number of good documents that were read since the start.
    pub generation: u64,
    /// The error of the newest one; the last good one stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Fields of it that are not followed, and why.
    pub notes: Vec<String>,
    /// The refused parts, while the rest is in force: the field, its value, the allowed ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// The eBPF side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DatapathStatus {
    /// The way that pod traffic takes (`datapath.path`).
    #[serde(default)]
    pub path: PathMode,
    /// The kernel's features, by name.
    pub features: BTreeMap<String, Value>,
    /// The features that it lacks, each with its effect.
    #[serde(default)]
    pub missing_features: Vec<MissingFeature>,
    /// Programs of others on our hooks.
    pub foreign_programs: Vec<ForeignProgram>,
}

/// The recording of flows of the host's service NAT, so that both directions take its stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServiceNatStatus {
    /// The setting.
    pub mode: ServiceNat,
    /// True if flows are recorded.
    pub notes: bool,
    /// The findings of service NAT, if the setting is `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// Number of flows that are cut off because none is noted: NAT has changed their addresses, a pod is in
    /// them, and connection tracking has seen no answer. Nothing where they are noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
    /// The effect of a missing setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The last error.
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
    /// The effect of the value, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

/// The repairs since the agent's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Repairs {
    /// In all.
    pub total: u64,
    /// By the kind of object.
    pub by_kind: BTreeMap<ObjectKind, u64>,
    /// Objects that somebody else changes again and again.
    pub wars: Vec<RepairWar>,
}

/// An object that somebody else keeps changing back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairWar {
    /// Its kind.
    pub kind: ObjectKind,
    /// The object, in words.
    pub object: String,
    /// Repairs of it within the last minute.
    pub count: usize,
    /// The other owner, as far as it can be guessed, and the remedy.
    pub hint: String,
}

/// Which way pod traffic takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathMode {
    /// Past the host's stack wherever that is not needed.
    #[default]
    Direct,
    /// Through the host's stack, both ways, so that netfilter sees all of it.
    Stack,
}

/// The setting of the host's service NAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceNat {
    /// On as soon as rules for it are seen, and until the agent ends.
    #[default]
    Auto,
    /// The host does service NAT.
    On,
    /// The host does none.
    Off,
}
