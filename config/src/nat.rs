//! Section `nat`: ports, room and lifetimes of translated flows.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use datapath_common::abi::{self, FlowQuotas};
use datapath_common::config::PortSlice;
use flows::Lifetimes;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::values::{refused, within};

/// Section `nat`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NatSection {
    /// Ports of translated flows, withheld from the host: 1 to 4 ranges of whole 512s from 1024 on;
    /// null: 24576 ports from 32768 on. Each port serves one flow to a destination.
    pub ports: Option<Ports>,
    /// Limits on the number of flows.
    #[serde(deserialize_with = "document::nullable")]
    pub flows: FlowsSection,
    /// Timeouts of idle flows, in seconds.
    #[serde(deserialize_with = "document::nullable")]
    pub lifetimes: LifetimesSection,
}

/// Section `nat.flows`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FlowsSection {
    /// Limit of translated IPv4 flows, 64 to 4194304. A flow takes 256 bytes while it lives. A
    /// change drops all flows.
    pub ipv4: Capacity,
    /// Limit of translated IPv6 flows, as nat.flows.ipv4.
    pub ipv6: Capacity,
    /// Limit of flows from outside the VPC to pods, 64 to 4194304. A change drops their entries.
    pub inbound: Capacity,
    /// Translated flows of one pod, 64 to 4194304. It borrows up to half of what the table has
    /// free.
    pub per_endpoint: Capacity,
    /// Flows from outside the VPC to one pod, as nat.flows.per-endpoint.
    pub inbound_per_endpoint: Capacity,
    /// Limit of the host's flows that hold a port against pods' flows, 64 to 4194304.
    pub host: Capacity,
}

impl Default for FlowsSection {
    fn default() -> Self {
        let quotas = FlowQuotas::DEFAULT;
        Self {
            ipv4: Capacity(abi::DEFAULT_FLOWS_V4),
            ipv6: Capacity(abi::DEFAULT_FLOWS_V6),
            inbound: Capacity(abi::DEFAULT_INBOUND),
            per_endpoint: Capacity(quotas.endpoint),
            inbound_per_endpoint: Capacity(quotas.inbound),
            host: Capacity(quotas.host),
        }
    }
}

impl FlowsSection {
    /// The most flows of each owner.
    #[must_use]
    pub fn quotas(&self) -> FlowQuotas {
        FlowQuotas {
            endpoint: self.per_endpoint.get(),
            inbound: self.inbound_per_endpoint.get(),
            host: self.host.get(),
        }
    }
}

/// Section `nat.lifetimes`, in seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LifetimesSection {
    /// Idle timeout of an open TCP connection, in seconds, 10 to 864000.
    pub tcp_established: Lifetime,
    /// Idle timeout of a TCP connection that opens or ends, in seconds, 10 to 864000.
    pub tcp_transitory: Lifetime,
    /// Idle timeout of an answered UDP flow, in seconds, 10 to 864000.
    pub udp: Lifetime,
    /// Idle timeout of an answered UDP flow to a port below 1024 (DNS), in seconds, 10 to 864000.
    pub udp_well_known: Lifetime,
    /// Idle timeout of an unanswered UDP flow, in seconds, 10 to 864000.
    pub udp_unreplied: Lifetime,
    /// Idle timeout of an ICMP query, in seconds, 10 to 864000.
    pub icmp: Lifetime,
    /// Idle timeout of an SCTP association, in seconds, 10 to 864000.
    pub sctp: Lifetime,
    /// Idle timeout of a closed TCP connection while entries run short, in seconds, 2 to 240.
    pub closed_under_pressure: Pressed,
}

impl Default for LifetimesSection {
    fn default() -> Self {
        let lifetime = |of: Duration| Lifetime(of.as_secs());
        let Lifetimes {
            tcp_established,
            tcp_transitory,
            udp,
            udp_well_known,
            udp_unreplied,
            icmp,
            sctp,
            closed_under_pressure,
        } = Lifetimes::default();
        Self {
            tcp_established: lifetime(tcp_established),
            tcp_transitory: lifetime(tcp_transitory),
            udp: lifetime(udp),
            udp_well_known: lifetime(udp_well_known),
            udp_unreplied: lifetime(udp_unreplied),
            icmp: lifetime(icmp),
            sctp: lifetime(sctp),
            closed_under_pressure: Pressed(closed_under_pressure.as_secs()),
        }
    }
}

impl NatSection {
    /// The ports that are set, or those of a host with the default automatic ports.
    #[must_use]
    pub fn slices(&self) -> [PortSlice; PortSlice::MAX] {
        let none = PortSlice::NONE;
        let usual = [PortSlice::DEFAULT, none, none, none];
        self.ports.as_ref().map_or(usual, Ports::slices)
    }
}

impl LifetimesSection {
    /// The lifetimes.
    #[must_use]
    pub fn lifetimes(&self) -> Lifetimes {
        let of = |lifetime: Lifetime| Duration::from_secs(lifetime.0);
        Lifetimes {
            tcp_established: of(self.tcp_established),
            tcp_transitory: of(self.tcp_transitory),
            udp: of(self.udp),
            udp_well_known: of(self.udp_well_known),
            udp_unreplied: of(self.udp_unreplied),
            icmp: of(self.icmp),
            sctp: of(self.sctp),
            closed_under_pressure: Duration::from_secs(self.closed_under_pressure.0),
        }
    }
}

/// Number of entries that a map has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Capacity(#[schemars(range(min = Self::MIN, max = Self::MAX))] u32);

impl Capacity {
    /// Below this, chance alone fills a map.
    const MIN: u32 = 64;
    /// A gigabyte of flows, at 256 bytes each.
    const MAX: u32 = 4_194_304;

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        within(deserializer, Self::MIN..=Self::MAX, "").map(Self)
    }
}

/// Timeout of an idle flow, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lifetime(#[schemars(range(min = Self::MIN, max = Self::MAX))] u64);

impl Lifetime {
    /// The programs refresh a flow at most once a second, and the reaper checks it every ten
    /// seconds while room is plentiful.
    const MIN: u64 = 10;
    /// Ten days.
    const MAX: u64 = 864_000;
}

impl<'de> Deserialize<'de> for Lifetime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        within(deserializer, Self::MIN..=Self::MAX, " seconds").map(Self)
    }
}

/// Timeout of a closed flow where room is short, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Pressed(#[schemars(range(min = Self::MIN, max = Self::MAX))] u64);

impl Pressed {
    /// The programs refresh a flow at most once a second.
    ///
    /// Below two seconds, a flow could be removed while its last segments are in flight.
    const MIN: u64 = 2;
    /// Without a shortage, TCP has four minutes (RFC 5382 REQ-5).
    const MAX: u64 = 240;
}

impl<'de> Deserialize<'de> for Pressed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        within(deserializer, Self::MIN..=Self::MAX, " seconds").map(Self)
    }
}

/// The ports of translated flows: one to four ranges.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "Vec<String>", extend("minItems" = 1, "maxItems" = PortSlice::MAX))]
pub struct Ports([PortSlice; PortSlice::MAX]);

impl Ports {
    /// The ranges; [`PortSlice::NONE`] after the last one.
    #[must_use]
    pub fn slices(&self) -> [PortSlice; PortSlice::MAX] {
        self.0
    }

    /// The first and the last port of each range.
    pub fn ranges(&self) -> impl Iterator<Item = (u16, u16)> {
        self.0
            .into_iter()
            .filter(|slice| *slice != PortSlice::NONE)
            .map(|slice| {
                let port = |block: u16| block * BLOCK;
                let first = u16::from(slice.first_block());
                let last = first + u16::from(slice.blocks()) - 1;
                (port(first), port(last) + (BLOCK - 1))
            })
    }
}

const BLOCK: u16 = {
    assert!(abi::PORTS_PER_BLOCK == 512);
    512
};

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<_> = self
            .ranges()
            .map(|(first, last)| format!("{first}-{last}"))
            .collect();
        f.write_str(&ranges.join(", "))
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.ranges().map(|(first, last)| format!("{first}-{last}")))
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let mut slices = [PortSlice::NONE; PortSlice::MAX];
        if !(1..=PortSlice::MAX).contains(&texts.len()) {
            return Err(refused(
                texts,
                format_args!("1 to {} ranges of ports", PortSlice::MAX),
            ));
        }
        let mut blocks = BTreeSet::new();
        for (slot, text) in slices.iter_mut().zip(&texts) {
            let slice = slice(text).ok_or_else(|| {
                refused(
                    text,
                    "a range of ports from 1024 on whose first is a multiple of 512 and whose \
                     last is one below (40960-65535)",
                )
            })?;
            for block in slice.first_block()..slice.first_block() + slice.blocks() {
                if !blocks.insert(block) {
                    return Err(D::Error::custom(format_args!(
                        "{text:?} is refused; allowed: ranges that do not overlap"
                    )));
                }
            }
            *slot = slice;
        }
        Ok(Self(slices))
    }
}

fn slice(text: &str) -> Option<PortSlice> {
    let (first, last) = text.split_once('-')?;
    PortSlice::new(first.trim().parse().ok()?, last.trim().parse().ok()?)
}
