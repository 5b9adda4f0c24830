//! What the decision looks at, for people and for the socket.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::PoolPolicy;
use crate::types::EniNumber;

/// The inputs of the decision, as they are resolved against the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MasqueradeView {
    /// The destinations that are never masqueraded, and metadata.
    pub exempt: Vec<ExemptCidr>,
    /// The pools that the node has addresses of, and those that have a document.
    pub pools: Vec<PoolView>,
    /// By which ENI and with which address masqueraded packets leave.
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
    /// Where it comes from.
    pub source: String,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// What holds for it; none while that is not known: then each address keeps what it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PoolPolicy>,
    /// The CIDRs of it that the node document allocates to this node.
    pub cidrs: Vec<IpNet>,
}

/// An ENI as a way out of masqueraded packets.
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

/// An ENI as a way out of one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FamilyMasquerade {
    /// The translation address: the source of what leaves by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Why it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_address: Option<String>,
    /// The ENI by which packets of its pods leave.
    pub external: EniNumber,
    /// Why by that one.
    pub why: String,
}
