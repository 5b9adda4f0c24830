//! The settings of masquerade.

use std::collections::BTreeSet;
use std::path::PathBuf;

use api::types::ExternalPolicy;
use datapath_common::masquerade::MetadataPolicy;
use ipam::Family;
use ipnet::IpNet;

/// The settings of masquerade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasqueradeSettings {
    /// True if IPv4 is masqueraded.
    pub ipv4: bool,
    /// True if IPv6 is masqueraded.
    pub ipv6: bool,
    /// Destinations that are never masqueraded.
    pub native: BTreeSet<IpNet>,
    /// By which ENI masqueraded packets leave.
    pub external: ExternalPolicy,
    /// Treatment of packets to the instance metadata service.
    pub metadata: MetadataPolicy,
    /// True if only the pool `default` is masqueraded.
    pub only_default_pool: bool,
    /// File or folder with pool documents.
    pub pools: Option<PathBuf>,
    /// The ip-masq-agent file or folder, where it is used.
    pub agent: Option<PathBuf>,
}

impl MasqueradeSettings {
    /// True if any family is masqueraded.
    #[must_use]
    pub fn is_on_at_all(&self) -> bool {
        self.ipv4 || self.ipv6
    }

    /// True if a family is masqueraded.
    #[must_use]
    pub fn is_on(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }
}

/// The name of a metadata policy, as the configuration has it.
#[must_use]
pub fn metadata_name(policy: MetadataPolicy) -> &'static str {
    match policy {
        MetadataPolicy::Primary => "primary",
        MetadataPolicy::Own => "own",
        MetadataPolicy::Block => "block",
        MetadataPolicy::Stack => "stack",
    }
}
