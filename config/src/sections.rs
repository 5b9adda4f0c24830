//! The sections of the configuration file, with their defaults.

use std::net::SocketAddr;

use api::types::PathMode;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::values::device_name::PodDeviceName;
use super::values::{
    AbsolutePath, CacheEntries, DeviceName, MarkMask, Mtu, RouteProtocol, refused,
};
use loader::bpf::AttachMode;

/// Section `node`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeSection {
    /// File with the node's CiliumNode document, JSON or YAML. The agent follows its changes.
    pub document: AbsolutePath,
    /// Device of the primary ENI, for a document that lists no ENI with number 0 on a host where no
    /// device has the node's InternalIP; null: none.
    pub primary_device: Option<DeviceName>,
    /// Reaction to another CNI on the node (Amazon VPC CNI, Cilium, Calico): refuse (do not start,
    /// unless pods of this agent run there), or ignore (start and warn).
    pub other_cni: OtherCni,
}

/// Action at the agent's start if another CNI is active on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OtherCni {
    /// The agent does not start on a node where it has no pods yet.
    #[default]
    Refuse,
    /// The agent starts, and warns.
    Ignore,
}

impl Default for NodeSection {
    fn default() -> Self {
        Self {
            document: AbsolutePath::known("/etc/towpath/node.yaml"),
            primary_device: None,
            other_cni: OtherCni::default(),
        }
    }
}

/// Section `endpoint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EndpointSection {
    /// MTU of pod interfaces, 1280 to 9001; null: MTU of the endpoint's ENI.
    pub mtu: Option<Mtu>,
    /// MTU of pods' default route, for packets that leave the VPC, 1280 to 9001. Running pods
    /// follow; null: MTU of the interface.
    pub internet_mtu: Option<Mtu>,
    /// Names of pods' host-side devices: id (tow and the endpoint's id), or the prefix that a
    /// policy engine expects (cali, eni), 1 to 4 characters.
    pub device_name: PodDeviceName,
}

/// Section `datapath`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DatapathSection {
    /// Path of pod packets: direct (past the host's stack and netfilter), or stack (through both,
    /// in both directions).
    #[schemars(with = "String")]
    pub path: PathMode,
    /// Attachment of programs: auto (TCX where the kernel has it), mixed (auto, but clsact on pods'
    /// devices), tcx, or clsact.
    #[schemars(with = "String")]
    pub attach: AttachMode,
    /// Bits of the packet mark that Towpath uses: contiguous, at least 6, and free of other users'
    /// bits.
    pub mark_mask: MarkMask,
    /// Folder on a bpffs for pinned maps and links.
    pub pin_root: AbsolutePath,
    /// Flows whose last decision each CPU keeps for half a second: a power of two up to 65536, 128
    /// bytes each; 0: none.
    pub flow_cache: CacheEntries,
}

impl Default for DatapathSection {
    fn default() -> Self {
        Self {
            path: PathMode::default(),
            attach: AttachMode::default(),
            mark_mask: MarkMask::default(),
            pin_root: AbsolutePath::known("/sys/fs/bpf/towpath"),
            flow_cache: CacheEntries::default(),
        }
    }
}

/// Section `kernel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KernelSection {
    /// Protocol of routes and rules: kernel (systemd-networkd leaves those alone), or 5 to 255.
    pub route_protocol: RouteProtocol,
    /// Folder of the network's sysctls. In a container /proc/sys is read-only: name the mount of
    /// the host's there.
    pub sysctls: AbsolutePath,
}

impl Default for KernelSection {
    fn default() -> Self {
        Self {
            route_protocol: RouteProtocol::default(),
            sysctls: AbsolutePath::known("/proc/sys/net"),
        }
    }
}

/// Section `http`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HttpSection {
    /// Listen address of /healthz, /readyz and /metrics (docs/reference/metrics.md), such as
    /// 127.0.0.1:9971; null: none.
    #[serde(deserialize_with = "listening")]
    pub address: Option<SocketAddr>,
}

/// Section `metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MetricsSection {
    /// Listen address of /metrics alone, for a Prometheus elsewhere (docs/reference/metrics.md),
    /// such as 0.0.0.0:9972; null: only http.address.
    #[serde(deserialize_with = "listening")]
    pub address: Option<SocketAddr>,
}

fn listening<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let address = text.parse().ok();
    let address = address.filter(|address: &SocketAddr| address.port() > 0);
    address.map(Some).ok_or_else(|| {
        refused(
            &text,
            "an address with a port (127.0.0.1:9971, [::1]:9971), or null",
        )
    })
}

/// Least severity of messages that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Problems that need an action.
    Error,
    /// Problems that may need an action.
    Warn,
    /// Changes.
    #[default]
    Info,
    /// Actions.
    Debug,
    /// Everything.
    Trace,
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}
