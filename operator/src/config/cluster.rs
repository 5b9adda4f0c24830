//! Settings of the API server's side.

use std::path::PathBuf;

use document::nullable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::Span;

/// The API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KubernetesSection {
    /// Kubeconfig file; null: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Lease of the leader election.
    #[serde(deserialize_with = "nullable")]
    pub lease: LeaseSection,
}

/// The Lease by which one operator works at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeaseSection {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
}

impl Default for LeaseSection {
    fn default() -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: "towpath-operator".to_owned(),
        }
    }
}

/// The taint `node.towpath.dev/agent-not-ready:NoSchedule`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TaintSection {
    /// Keep pods off nodes whose agent is not ready: true or false.
    pub enabled: bool,
    /// Time for which an agent is not ready before its node is tainted, 10s to 1h.
    pub after: Span<10, 3600>,
}

impl Default for TaintSection {
    fn default() -> Self {
        Self {
            enabled: true,
            after: Span::of(120),
        }
    }
}
