//! The datapath's counters, as the agent reports them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Fabric;

/// A program and an outcome.
pub type Name = (String, String);

/// Packets by program and outcome.
///
/// # Errors
/// When the agent does not answer.
pub fn read(fabric: &Fabric) -> Result<BTreeMap<Name, u64>> {
    let answer: Value = fabric.agent.ask("GET", "/v1/metrics", None)?;
    let mut counters = BTreeMap::new();
    for metric in answer.as_array().into_iter().flatten() {
        let text = |key: &str| metric[key].as_str().map(str::to_owned);
        // The counters of translation count flows.
        if metric["program"] == "nat" {
            continue;
        }
        let name = text("program").zip(text("outcome"));
        let packets = metric["packets"].as_u64();
        let (name, packets) = name
            .zip(packets)
            .with_context(|| format!("a counter of the agent: {metric}"))?;
        counters.insert(name, packets);
    }
    Ok(counters)
}

/// Differences between two readings.
#[must_use]
pub fn moved(before: &BTreeMap<Name, u64>, after: &BTreeMap<Name, u64>) -> BTreeMap<Name, u64> {
    let difference = |(name, packets): (&Name, &u64)| {
        let earlier = before.get(name).copied().unwrap_or_default();
        let moved = packets.saturating_sub(earlier);
        (moved > 0).then(|| (name.clone(), moved))
    };
    after.iter().filter_map(difference).collect()
}
