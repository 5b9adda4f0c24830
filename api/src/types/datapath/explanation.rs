//! The answer to what becomes of a packet.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ids::EniNumber;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Out by an ENI with another source.
    Translated,
    /// Out by an ENI with its own source.
    Untranslated,
    /// Into another pod's namespace.
    Delivered,
    /// Up to the host's stack.
    Stack,
    /// Dropped.
    Dropped,
}

/// Fate of a packet, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Explanation {
    /// Look-ups in the programs' order, and their results.
    pub steps: Vec<Step>,
    /// The fate of the packet.
    pub verdict: Verdict,
    /// Reason: `exempt-vpc`, `exempt-native`, `exempt-masq-agent`, `exempt-link-local`,
    /// `skip-pool`, `off`, `translated`, `inbound`, `stack`, `stack-flow`, `local` or `host`; for a
    /// dropped packet the drop reason's name.
    pub why: String,
    /// The ENI by which it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniNumber>,
    /// The source that the outside sees, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snat: Option<IpAddr>,
    /// The port that the outside sees, where the flow is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Fate of the packet after the host's stack, which all packets of the pod take, unless the
    /// host's rules drop or change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Onward>,
}

/// Fate of a packet that the host's stack sends on; the fields are those of [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Onward {
    /// The fate of the packet.
    pub verdict: Verdict,
    /// Reason.
    pub why: String,
    /// The ENI by which it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniNumber>,
    /// The source that the outside sees, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snat: Option<IpAddr>,
    /// The port that the outside sees, where the flow is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// One question and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Step {
    /// The look-up.
    pub question: String,
    /// The result.
    pub answer: String,
}
