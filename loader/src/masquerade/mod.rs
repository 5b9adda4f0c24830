//! The masquerade policy: what is asked for by the configuration, by `CiliumPodIPPool` documents
//! and by ip-masq-agent files; and what the live maps make of it.

mod agent_file;
mod duration;
mod host_ports;
mod judge;
mod live;
mod pool;
mod ports;
mod settings;
mod used_pools;

pub use self::agent_file::{AgentCidrs, AgentFiles, MASQUERADE_DEFAULTS};
pub use self::host_ports::{HostPorts, NO_SLICES, SharedPorts, choose, cover};
pub use self::judge::Judge;
pub use self::live::{Asked, Live, class_names, unknown_source};
pub(crate) use self::pool::DEFAULT_POOL;
pub use self::pool::{PoolDocuments, Pools};
pub use self::ports::{BadPorts, PortList};
pub use self::settings::{MasqueradeSettings, metadata_name};
pub(crate) use self::used_pools::UsedPools;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use crate::follow::{self, Followed};

/// What the followed files say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The pools; `None` where no file has them, or before the first good content.
    pub pools: Option<Arc<Pools>>,
    /// What the ip-masq-agent files exempt; as for `pools`.
    pub agent: Option<Arc<AgentCidrs>>,
}

/// Follows a file or folder of `CiliumPodIPPool` documents.
///
/// Must be called inside a tokio runtime.
#[must_use]
pub fn watch_pools(path: PathBuf) -> watch::Receiver<Followed<Pools>> {
    follow::watch(path, PoolDocuments)
}

/// Follows an ip-masq-agent file, or a folder of fragments.
///
/// Must be called inside a tokio runtime.
#[must_use]
pub fn watch_agent(path: PathBuf) -> watch::Receiver<Followed<AgentCidrs>> {
    follow::watch(path, AgentFiles)
}

/// Says why a file or folder of pools cannot be used as it is now, if so.
pub(crate) fn look_at_pools(path: &Path) -> Option<String> {
    match follow::look(path, &PoolDocuments) {
        Ok(pools) => {
            let refused: Vec<_> = pools.refused().iter().map(ToString::to_string).collect();
            (!refused.is_empty()).then(|| refused.join("; "))
        }
        Err(error) => Some(error),
    }
}

/// Says why an ip-masq-agent file, or a folder of fragments, cannot be used as it is now, if so.
pub(crate) fn look_at_agent(path: &Path) -> Option<String> {
    follow::look(path, &AgentFiles).err()
}

/// Whether a CIDR is what it looks like: the maps hold IPv4 as v4-mapped IPv6, so a CIDR within
/// that range would be one of IPv4.
#[must_use]
pub fn is_plain(net: ipnet::IpNet) -> bool {
    match net.addr() {
        std::net::IpAddr::V4(_) => true,
        std::net::IpAddr::V6(address) => address.to_ipv4_mapped().is_none(),
    }
}
