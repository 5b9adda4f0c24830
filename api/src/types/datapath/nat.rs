//! Translated flows and what translation does.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Filter of flows: those that match all given fields. The body of `POST /v1/nat/flows` and of
/// `POST /v1/nat/flush`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FlowFilter {
    /// The inside address: a pod's, or for the host's flows the translation address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<IpAddr>,
    /// Remote address of the flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// The protocol: `tcp`, `udp`, `icmp`, `icmpv6`, `sctp` or a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// True if all flows are selected; a flush without a filter requires it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// Kind of a flow, by its owner and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowKind {
    /// A pod's, translated.
    Pod,
    /// The host's, on one of our ports.
    Host,
    /// Opened from the outside, not translated.
    Inbound,
    /// Through the host's stack in both directions, not translated by us.
    Stack,
}

impl FlowKind {
    /// The stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Host => "host",
            Self::Inbound => "inbound",
            Self::Stack => "stack",
        }
    }

    /// Of a translated flow, by whose quota it counts for.
    #[must_use]
    pub fn of(endpoint: u32) -> Self {
        if endpoint == 0 { Self::Host } else { Self::Pod }
    }
}

/// Flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatFlows {
    /// The flows, no more than [`Self::MAX`].
    pub flows: Vec<NatFlow>,
    /// Total number of flows.
    pub total: u64,
}

impl NatFlows {
    /// Most flows of one answer: some megabytes.
    pub const MAX: usize = 20_000;
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatFlow {
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// The protocol's name, or its number.
    pub protocol: String,
    /// Kind of the flow.
    pub kind: FlowKind,
    /// The inside address.
    pub pod: IpAddr,
    /// The inside port; an ICMP query's id.
    pub pod_port: u16,
    /// Number of the ENI by which it leaves, or whose mark it gets in the host's stack; none for one
    /// from the outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<u8>,
    /// The address that the outside sees; none where the ENI has none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translated: Option<IpAddr>,
    /// The port that the outside sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translated_port: Option<u16>,
    /// Remote address.
    pub remote: IpAddr,
    /// The remote's port; 0 for an ICMP query.
    pub remote_port: u16,
    /// Phase of the flow: `opening`, `established`, `closing` or `closed`.
    pub phase: String,
    /// Idle time in seconds, exact to one second.
    pub idle_seconds: u64,
    /// Seconds until the flow is removed if it stays idle.
    pub expires_seconds: u64,
}

/// Result of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatFlushed {
    /// Flows removed.
    pub removed: u64,
}

/// Statistics of translation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatStats {
    /// By family, since the maps were made.
    pub families: BTreeMap<String, NatFamily>,
    /// Packets dropped by reason: allocations that failed, and packets without a flow.
    pub failures: BTreeMap<String, u64>,
    /// Flows by family, kind and phase.
    pub flows: Vec<FlowCount>,
    /// The destinations with the most used ports.
    pub destinations: Vec<DestinationUse>,
    /// The sweeper's part.
    pub sweeper: NatStatus,
}

/// Counters of translation in a family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatFamily {
    /// Flows that got a port.
    pub allocated: u64,
    /// Of these, those that kept their source port.
    pub kept: u64,
    /// Of these, those of the host.
    pub host: u64,
    /// Flows removed.
    pub removed: u64,
    /// Flows from the outside noted.
    pub inbound_noted: u64,
    /// Flows from the outside removed.
    pub inbound_removed: u64,
    /// Flows of the host's stack noted.
    pub stack_noted: u64,
    /// Flows of the host's stack removed.
    pub stack_removed: u64,
    /// Allocations that failed.
    pub failed: u64,
    /// Allocations by the number of ports that were tried.
    pub tries: Vec<Tries>,
}

/// Allocations by the number of ports that were tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tries {
    /// The number, such as `2-5`.
    pub ports: String,
    /// Allocations.
    pub allocations: u64,
}

/// Flows of one family, kind and phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FlowCount {
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Kind of the flows.
    pub kind: FlowKind,
    /// Phase of the flows.
    pub phase: String,
    /// Number of flows.
    pub flows: u64,
}

/// The use of ports towards one destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DestinationUse {
    /// Number of the ENI.
    pub eni: u8,
    /// The protocol's name, or its number.
    pub protocol: String,
    /// The destination.
    pub remote: IpAddr,
    /// Its port.
    pub remote_port: u16,
    /// Ports used.
    pub ports: u64,
    /// Of all that there are, in percent.
    pub percent: f64,
}

/// Status of the sweeper of translated flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatStatus {
    /// The maps and their fill levels.
    pub maps: Vec<MapUse>,
    /// Flows removed because they had been idle for too long.
    pub reclaimed: u64,
    /// Of these, those removed while room was short.
    pub reclaimed_under_pressure: u64,
    /// Flows removed because their endpoint is.
    pub of_removed_endpoints: u64,
    /// Flows removed on request.
    pub flushed: u64,
    /// Counts of endpoints' flows that were corrected.
    pub quotas_corrected: u64,
    /// The last sweep; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sweep: Option<LastSweep>,
    /// The latest error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Fill level of a map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MapUse {
    /// The setting that sizes it: `ipv4`, `ipv6` or `inbound`.
    pub name: String,
    /// Entries.
    pub used: u64,
    /// Entries that there is room for.
    pub room: u32,
    /// Of that, in percent.
    pub percent: f64,
}

/// The last sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LastSweep {
    /// Time since it ended, in seconds.
    pub seconds_ago: u64,
    /// Its duration, in milliseconds.
    pub took_ms: u64,
    /// Flows that it removed.
    pub removed: u64,
    /// Translated flows that policy would not translate any more.
    pub exempt: u64,
    /// True if room was short.
    pub under_pressure: bool,
}
