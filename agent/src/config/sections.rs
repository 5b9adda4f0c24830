//! The sections of the configuration file, with their defaults.

use std::net::SocketAddr;

use api::types::PathMode;
use serde::{Deserialize, Deserializer, Serialize};

use super::device_name::PodDeviceName;
use super::values::{
    AbsolutePath, CacheEntries, DeviceName, MarkMask, Mtu, RouteProtocol, refused,
};
use loader::bpf::AttachMode;

/// Section `node`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeSection {
    /// The node document's file.
    pub document: AbsolutePath,
    /// Device of the primary ENI if no other source names it.
    pub primary_device: Option<DeviceName>,
    /// Action at the start if another CNI is active on the node.
    pub other_cni: OtherCni,
}

/// Action at the agent's start if another CNI is active on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EndpointSection {
    /// MTU of pod interfaces; `None` for that of the endpoint's ENI.
    pub mtu: Option<Mtu>,
    /// MTU of what pods send out of the VPC; `None` for that of their interface.
    pub internet_mtu: Option<Mtu>,
    /// Source of the names of pods' host-side devices.
    pub device_name: PodDeviceName,
}

/// Section `datapath`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DatapathSection {
    /// Path of pod traffic.
    pub path: PathMode,
    /// Mechanism by which programs are attached.
    pub attach: AttachMode,
    /// Our part of the packet mark.
    pub mark_mask: MarkMask,
    /// Folder on a bpffs for pins.
    pub pin_root: AbsolutePath,
    /// Entries of the flow cache for each CPU.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KernelSection {
    /// Protocol of our routes and rules.
    pub route_protocol: RouteProtocol,
    /// Folder of the network's sysctls.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HttpSection {
    /// Address of health and metrics; `None` for no endpoint.
    #[serde(deserialize_with = "listening")]
    pub address: Option<SocketAddr>,
}

/// Section `metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MetricsSection {
    /// Address of metrics alone; `None` if they are only at `http.address`.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
