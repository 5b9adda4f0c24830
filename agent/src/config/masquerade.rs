//! Section `masquerade`.

use std::collections::BTreeSet;

use api::types::ExternalPolicy;
use datapath_common::masquerade::MetadataPolicy;
use ipnet::IpNet;
use loader::intent::masquerade::{MasqueradeSettings, is_plain};
use serde::{Deserialize, Deserializer, Serialize};

use super::values::{AbsolutePath, refused};
use document::nullable;

/// Section `masquerade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MasqueradeSection {
    /// True if IPv4 is masqueraded.
    pub ipv4: bool,
    /// True if IPv6 is masqueraded.
    pub ipv6: bool,
    /// Destinations that are never masqueraded.
    #[serde(deserialize_with = "nullable")]
    pub native_routing_cidrs: BTreeSet<NativeCidr>,
    /// Policy for the ENI by which masqueraded packets leave.
    pub external: ExternalPolicy,
    /// Policy for packets to the instance metadata service.
    pub metadata: Metadata,
    /// True if only the pool `default` is masqueraded.
    pub only_default_pool: bool,
    /// File or folder with pool documents.
    pub pools: Option<AbsolutePath>,
    /// The ip-masq-agent file.
    #[serde(deserialize_with = "nullable")]
    pub ip_masq_agent: AgentSection,
}

impl Default for MasqueradeSection {
    fn default() -> Self {
        Self {
            ipv4: true,
            ipv6: false,
            native_routing_cidrs: BTreeSet::new(),
            external: ExternalPolicy::default(),
            metadata: Metadata::default(),
            only_default_pool: false,
            pools: None,
            ip_masq_agent: AgentSection::default(),
        }
    }
}

impl MasqueradeSection {
    /// The settings, as the rest of the agent takes them.
    #[must_use]
    pub fn settings(&self) -> MasqueradeSettings {
        let path = |path: &AbsolutePath| path.as_path().to_owned();
        let agent = &self.ip_masq_agent;
        MasqueradeSettings {
            ipv4: self.ipv4,
            ipv6: self.ipv6,
            native: self.native_routing_cidrs.iter().map(|c| c.0).collect(),
            external: self.external,
            metadata: self.metadata.into(),
            only_default_pool: self.only_default_pool,
            pools: self.pools.as_ref().map(path),
            agent: agent.enabled.then(|| path(&agent.path)),
        }
    }
}

/// Section `masquerade.ip-masq-agent`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AgentSection {
    /// True if the file is used.
    pub enabled: bool,
    /// The file, or a folder of fragments.
    pub path: AbsolutePath,
}

impl Default for AgentSection {
    fn default() -> Self {
        Self {
            enabled: false,
            path: AbsolutePath::known("/etc/config/ip-masq-agent"),
        }
    }
}

/// Policy for packets to the instance metadata service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metadata {
    /// Out of the primary with its address.
    #[default]
    Primary,
    /// Out of the owner ENI with the pod's address.
    Own,
    /// Dropped.
    Block,
    /// Up to the host's stack, whose rules decide.
    Stack,
}

impl From<Metadata> for MetadataPolicy {
    fn from(metadata: Metadata) -> Self {
        match metadata {
            Metadata::Primary => Self::Primary,
            Metadata::Own => Self::Own,
            Metadata::Block => Self::Block,
            Metadata::Stack => Self::Stack,
        }
    }
}

/// A CIDR that the VPC routes, in its canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct NativeCidr(IpNet);

impl<'de> Deserialize<'de> for NativeCidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let allowed = "a CIDR of IPv4 or IPv6 (10.0.0.0/8, fd00::/8)";
        let net: IpNet = text
            .parse()
            .map_err(|_not_a_cidr: ipnet::AddrParseError| refused(&text, allowed))?;
        if !is_plain(net) {
            return Err(refused(&text, allowed));
        }
        if net.trunc() != net {
            return Err(refused(&text, net.trunc()));
        }
        Ok(Self(net))
    }
}
