//! Section `agent-addresses`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ipam::{PoolName, Seconds};
use super::values::{AbsolutePath, refused};

/// Section `agent-addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AgentAddressesSection {
    /// Addresses of the node's agent for a gateway's listeners (spec.ingress): off, on (the host
    /// answers), or the path of the network namespace that answers.
    pub ingress: Ingress,
    /// Pool of these addresses without delegated IPAM; null: ipam.default-pool.
    pub pool: Option<PoolName>,
    /// Folders of the delegated IPAM plugin. The CNI configuration in cni.conf-dir names it.
    #[serde(deserialize_with = "document::nullable")]
    pub plugin_dirs: Vec<AbsolutePath>,
    /// Time limit of a call of the delegated IPAM plugin, in seconds, 1 to 86400.
    pub timeout: Seconds<1>,
    /// Folder of the record of the plugin's addresses. It should outlive a reboot.
    pub state_dir: AbsolutePath,
}

impl Default for AgentAddressesSection {
    fn default() -> Self {
        Self {
            ingress: Ingress::default(),
            pool: None,
            plugin_dirs: vec![AbsolutePath::known("/opt/cni/bin")],
            timeout: Seconds::new(Duration::from_secs(30)),
            state_dir: AbsolutePath::known("/var/lib/towpath"),
        }
    }
}

impl AgentAddressesSection {
    /// The folders of plugins.
    #[must_use]
    pub fn folders(&self) -> Vec<PathBuf> {
        let folders = self.plugin_dirs.iter().map(AbsolutePath::as_path);
        folders.map(Path::to_owned).collect()
    }
}

/// Network namespace that answers for the addresses of a gateway's listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub enum Ingress {
    /// There are none.
    #[default]
    Off,
    /// On the host.
    On,
    /// In the network namespace at this path.
    Netns(PathBuf),
}

impl Serialize for Ingress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::On => serializer.serialize_str("on"),
            Self::Netns(path) => path.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Ingress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            path if Path::new(path).is_absolute() => Ok(Self::Netns(path.into())),
            other => {
                let allowed = "off, on, or the path of a network namespace (/run/netns/gateway)";
                Err(refused(other, allowed))
            }
        }
    }
}
