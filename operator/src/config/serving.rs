//! Settings of what the operator serves to people and tools.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Probes and the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HttpSection {
    /// Listen address of /healthz, /readyz and of the command line's requests, which are
    /// read-only.
    pub address: SocketAddr,
}

impl Default for HttpSection {
    fn default() -> Self {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            address: SocketAddr::new(address, 9973),
        }
    }
}

/// Metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MetricsSection {
    /// Listen address of /metrics; null: none.
    pub address: Option<SocketAddr>,
}

/// The lowest level of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum LogLevel {
    /// Failures that need a person.
    Error,
    /// Also what may need one.
    Warn,
    /// Also every change.
    #[default]
    Info,
    /// Also every call.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The level's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}
