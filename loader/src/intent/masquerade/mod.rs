//! The masquerade policy as values: from the configuration, `CiliumPodIPPool` documents and
//! ip-masq-agent files.

mod agent_cidrs;
mod classes;
mod host_ports;
mod pool;
mod ports;
mod settings;

pub use self::agent_cidrs::{AgentCidrs, MASQUERADE_DEFAULTS};
pub use self::classes::class_names;
pub use self::host_ports::{HostPorts, NO_SLICES, SharedPorts, choose, cover};
pub use self::pool::{DEFAULT_POOL, PoolDocument, Pools, SKIP};
pub use self::ports::{BadPorts, PortList};
pub use self::settings::{MasqueradeSettings, metadata_name};

use std::sync::Arc;

/// The policy of the followed files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The pools; `None` where no file has them, or before the first good content.
    pub pools: Option<Arc<Pools>>,
    /// The CIDRs that ip-masq-agent files exempt; as for `pools`.
    pub agent: Option<Arc<AgentCidrs>>,
}

/// True unless a CIDR is within v4-mapped IPv6: the maps would take it for IPv4.
#[must_use]
pub fn is_plain(net: ipnet::IpNet) -> bool {
    match net.addr() {
        std::net::IpAddr::V4(_) => true,
        std::net::IpAddr::V6(address) => address.to_ipv4_mapped().is_none(),
    }
}
