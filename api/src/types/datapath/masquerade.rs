//! Masquerade policy, and the reasons for it.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::ids::EniNumber;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Inputs of the masquerade decision: the answer to `GET /v1/masquerade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MasqueradeStatus {
    /// True if IPv4 is masqueraded.
    pub ipv4: bool,
    /// True if IPv6 is masqueraded.
    pub ipv6: bool,
    /// Policy for the ENI by which masqueraded packets leave.
    pub external: ExternalPolicy,
    /// Policy for packets to the instance metadata service: `primary`, `own`, `block` or `stack`.
    pub metadata: String,
    /// True if only the pool `default` is masqueraded.
    pub only_default_pool: bool,
    /// The pool documents, if the configuration names any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_documents: Option<FileStatus>,
    /// The ip-masq-agent file, if it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_masq_agent: Option<FileStatus>,
    /// Harmless notes.
    pub notes: Vec<String>,
    /// The resulting policy.
    #[serde(flatten)]
    pub view: MasqueradeView,
}

/// A file or folder that is followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FileStatus {
    /// Path of the file or folder.
    pub path: PathBuf,
    /// Number of times that valid content was read since the start.
    pub generation: u64,
    /// Current error; the last valid content stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Policy for the ENI by which masqueraded packets leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExternalPolicy {
    /// By the owner ENI, unless only the primary has a public address.
    #[default]
    Auto,
    /// By the ENI that owns the pod's address.
    OwnEni,
    /// By the primary.
    PrimaryEni,
}

impl ExternalPolicy {
    /// The name, as the configuration has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::OwnEni => "own-eni",
            Self::PrimaryEni => "primary-eni",
        }
    }
}

/// Policy for the addresses of a pool, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PoolPolicy {
    /// True if packets from the pool keep their source.
    pub skip_masquerade: bool,
    /// Reason.
    pub why: String,
    /// Location of the pool's document, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// The inputs of the decision, as they are resolved against the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MasqueradeView {
    /// The destinations that are never masqueraded, and metadata.
    pub exempt: Vec<ExemptCidr>,
    /// The pools that the node has addresses of, and those that have a document.
    pub pools: Vec<PoolView>,
    /// ENIs and addresses by which masqueraded packets leave.
    pub enis: Vec<EniMasquerade>,
    /// Networks that the host's routes lead to and that are one too many for the datapath.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<IpNet>,
}

/// A destination with a rule of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ExemptCidr {
    /// The CIDR.
    pub cidr: IpNet,
    /// Its class: `vpc`, `native`, `masq-agent`, `link-local`, `metadata` or `the host's routes`.
    pub class: String,
    /// Source of the entry.
    pub source: String,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// Policy of the pool; none while it is unknown, and each address then keeps its former one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PoolPolicy>,
    /// The pool's CIDRs that the node document allocates to this node.
    pub cidrs: Vec<IpNet>,
}

/// An ENI as the egress of masqueraded packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EniMasquerade {
    /// Its number.
    pub number: EniNumber,
    /// The cloud's id; none for a primary that the node document does not list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its public address, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<IpAddr>,
    /// IPv4.
    pub ipv4: FamilyMasquerade,
    /// IPv6.
    pub ipv6: FamilyMasquerade,
}

/// An ENI as the egress of one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FamilyMasquerade {
    /// The translation address: the source of what leaves by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Reason why it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_address: Option<String>,
    /// The ENI by which packets of its pods leave.
    pub external: EniNumber,
    /// Reason for that ENI.
    pub why: String,
}
