//! What is masqueraded, and why.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::masquerade::{ExternalPolicy, MasqueradeView};

pub use crate::masquerade::{
    EniMasquerade, ExemptCidr, Explanation, FamilyMasquerade, Onward, PoolPolicy, PoolView, Step,
    Verdict,
};

/// What the decision looks at: the answer to `GET /v1/masquerade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MasqueradeStatus {
    /// Whether IPv4 is masqueraded.
    pub ipv4: bool,
    /// Whether IPv6 is masqueraded.
    pub ipv6: bool,
    /// By which ENI masqueraded packets leave.
    pub external: ExternalPolicy,
    /// What becomes of packets to the instance metadata service: `primary`, `own`,
    /// `block` or `stack`.
    pub metadata: String,
    /// Whether only the pool `default` is masqueraded.
    pub only_default_pool: bool,
    /// The pool documents, where the configuration names any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_documents: Option<FileStatus>,
    /// The ip-masq-agent file, where it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_masq_agent: Option<FileStatus>,
    /// What is worth knowing, and does no harm.
    pub notes: Vec<String>,
    /// What it comes to.
    #[serde(flatten)]
    pub view: MasqueradeView,
}

/// A file or folder that is followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FileStatus {
    /// Where it is.
    pub path: PathBuf,
    /// How often good content was read since the start.
    pub generation: u64,
    /// What is wrong with it now; the last good content stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
