//! The CIDRs that ip-masq-agent files exempt from masquerade.

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;

/// The CIDRs where there is no file, or nothing in it: the ranges of RFC 1918 and 6598, and those
/// that RFC 5735 and its successors reserve. Cilium's list (`pkg/ipmasq/ipmasq.go`), which is the
/// one of ip-masq-agent with `--nomasq-all-reserved-ranges`.
pub const MASQUERADE_DEFAULTS: [&str; 11] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
];

/// The CIDRs that the files exempt from masquerade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentCidrs {
    /// The CIDRs, and where each comes from.
    pub cidrs: BTreeMap<IpNet, String>,
    /// True if 169.254.0.0/16 is masqueraded.
    pub masq_link_local: bool,
    /// True if `fe80::/10` is masqueraded.
    pub masq_link_local_ipv6: bool,
    /// The shortest of the intervals that the files ask for.
    pub resync: Option<Duration>,
    /// Notes for users.
    pub notes: Vec<String>,
}

impl AgentCidrs {
    /// The CIDRs without any file; `source` says so.
    #[must_use]
    pub fn standard(source: &str) -> Self {
        let cidrs = MASQUERADE_DEFAULTS.iter().filter_map(|text| {
            let net = text.parse().ok()?;
            Some((net, source.to_owned()))
        });
        Self {
            cidrs: cidrs.collect(),
            ..Self::default()
        }
    }
}
