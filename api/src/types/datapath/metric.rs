//! Counters.

use serde::{Deserialize, Serialize};

/// One counter of the datapath, summed over all CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Metric {
    /// The program that counts.
    pub program: String,
    /// Outcome of the packets: the name of a verdict or of a drop reason.
    pub outcome: String,
    /// True if they were dropped.
    pub drop: bool,
    /// Packets; a GSO packet counts once.
    pub packets: u64,
    /// Bytes, Ethernet headers included.
    pub bytes: u64,
    /// Meaning of the outcome.
    pub meaning: String,
}
