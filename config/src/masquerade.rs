//! Section `masquerade`.

use std::collections::BTreeSet;

use api::types::ExternalPolicy;
use datapath_common::masquerade::MetadataPolicy;
use ipnet::IpNet;
use loader::intent::masquerade::{MasqueradeSettings, is_plain};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::values::{AbsolutePath, refused};
use document::nullable;

/// Section `masquerade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MasqueradeSection {
    /// Masquerade pods' IPv4 packets that leave the VPC: true or false.
    pub ipv4: bool,
    /// Masquerade pods' IPv6 packets that leave the VPC, though VPC addresses are global: true or
    /// false.
    pub ipv6: bool,
    /// CIDRs that the VPC routes for pods' addresses: never masqueraded. The VPC's own CIDRs never
    /// are.
    #[serde(deserialize_with = "nullable")]
    pub native_routing_cidrs: BTreeSet<NativeCidr>,
    /// ENI by which masqueraded packets leave: own-eni, primary-eni, or auto (own, unless only the
    /// primary has a public address).
    #[schemars(with = "String")]
    pub external: ExternalPolicy,
    /// Path of pods' packets to the instance metadata service: primary (by the primary ENI, with
    /// its address), own (by the owner ENI, untranslated), block, or stack (the host's rules
    /// decide).
    pub metadata: Metadata,
    /// Masquerade the pool default only: true or false.
    pub only_default_pool: bool,
    /// File with CiliumPodIPPool documents, or a folder of *.yaml, *.yml and *.json files. The
    /// agent follows changes; null: none.
    pub pools: Option<AbsolutePath>,
    /// CIDRs of an ip-masq-agent file, which are not masqueraded.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AgentSection {
    /// Exempt the CIDRs of an ip-masq-agent file from masquerade: true or false.
    pub enabled: bool,
    /// Path of the ip-masq-agent file, or a folder of fragments. The agent follows changes. Missing
    /// or empty: the standard 11 ranges.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(with = "String")]
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
