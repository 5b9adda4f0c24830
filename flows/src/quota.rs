//! Recorded flow counts of the endpoints, compared with the flows that exist.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::mem;

use anyhow::Result;
use datapath_common::abi::endpoint_of_quota;

use super::report::Top;
use super::sweep::Surroundings;
use super::tables::Tables;

/// The endpoint that is the host.
const HOST: u32 = 0;

/// Limits on flows that the programs were loaded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ports of translated flows.
    pub ports: u32,
    /// Most translated flows of one endpoint.
    pub per_endpoint: u32,
    /// Most flows from the outside of one endpoint.
    pub inbound_per_endpoint: u32,
    /// Most flows of the host.
    pub host: u32,
}

impl Limits {
    /// Part of its limit that the count of a key of `QUOTA` uses, from 0 to 1.
    #[must_use]
    pub(super) fn used(&self, key: u32, flows: u32) -> f64 {
        let most = if key == HOST {
            self.host
        } else if key == endpoint_of_quota(key) {
            self.per_endpoint
        } else {
            self.inbound_per_endpoint
        };
        f64::from(flows) / f64::from(most.max(1))
    }
}

/// Recorded flow counts, by key of `QUOTA`.
#[derive(Debug)]
pub(super) struct Said(HashMap<u32, u32>);

impl Said {
    /// Current counts.
    pub(super) fn read(tables: &impl Tables) -> Result<Self> {
        let mut said = HashMap::new();
        tables.quotas(&mut |key, flows| {
            said.insert(key, flows);
        })?;
        Ok(Self(said))
    }

    /// Largest part of its quota that an endpoint uses, from 0 to 1.
    pub(super) fn fullest(&self, limits: &Limits) -> f64 {
        let used = self.0.iter();
        let used = used.map(|(key, flows)| limits.used(*key, *flows));
        used.fold(0.0, f64::max)
    }

    /// The keys of endpoints that use more than a part of their quota.
    pub(super) fn above(&self, limits: &Limits, part: f64) -> HashSet<u32> {
        let used = self.0.iter();
        let above = used.filter(|(key, flows)| limits.used(**key, **flows) > part);
        above.map(|(key, _)| *key).collect()
    }

    /// The endpoint with the most flows, if any has one.
    pub(super) fn top(&self) -> Option<Top> {
        let mut flows: BTreeMap<u32, u64> = BTreeMap::new();
        for (key, count) in &self.0 {
            *flows.entry(endpoint_of_quota(*key)).or_default() += u64::from(*count);
        }
        let most = flows.into_iter().max_by_key(|(_, flows)| *flows);
        most.filter(|(_, flows)| *flows > 0)
            .map(|(endpoint, flows)| Top { endpoint, flows })
    }

    fn of(&self, key: u32) -> i64 {
        self.0.get(&key).copied().unwrap_or(0).into()
    }
}

/// Drift of a count that is certain, by the counts recorded before and after the flows were listed.
/// A flow that came or went in between may or may not have been listed. Any drift between the two
/// is therefore uncertain.
fn drift(before: i64, after: i64, there: i64) -> i64 {
    let (least, most) = (before.min(after) - there, before.max(after) - there);
    // Nought if that is among them, or else what is nearest to it.
    0_i64.clamp(least, most)
}

/// Differences that the last sweep found.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    drifts: HashMap<u32, i64>,
    /// Counts that were nought, and rightly so.
    empty: BTreeSet<u32>,
}

impl Quotas {
    /// Corrects the counts that are off now as they were at the last sweep, by the certain part of
    /// both. Returns the number of corrected counts. A new flow may be counted before it is in its
    /// table at one moment, but not at two. Nothing may have been removed since the flows were
    /// listed.
    pub(super) fn settle(
        &mut self,
        tables: &impl Tables,
        before: &Said,
        there: &HashMap<u32, u32>,
    ) -> Result<u64> {
        let after = Said::read(tables)?;
        let said = before.0.keys().chain(after.0.keys());
        let keys: BTreeSet<u32> = said.chain(there.keys()).copied().collect();
        let last = mem::take(&mut self.drifts);
        let mut corrected = 0;
        for key in keys {
            let there = i64::from(there.get(&key).copied().unwrap_or(0));
            let drift = drift(before.of(key), after.of(key), there);
            let certain = match last.get(&key) {
                Some(last) if last.signum() == drift.signum() => {
                    drift.signum() * drift.abs().min(last.abs())
                }
                _ => 0,
            };
            if certain != 0 {
                tables.correct_quota(key, certain)?;
                corrected += 1;
            } else if drift != 0 {
                self.drifts.insert(key, drift);
            }
        }
        Ok(corrected)
    }

    /// Removes the counts of endpoints that are gone now and were at the last sweep; returns true
    /// if the next sweep may remove more.
    ///
    /// An existing endpoint keeps its count: flows that it opens between the look-up and the
    /// removal would not be counted.
    pub(super) fn clean(
        &mut self,
        tables: &impl Tables,
        said: &Said,
        around: &Surroundings,
    ) -> Result<bool> {
        let is_empty = |(key, flows): (&u32, &u32)| {
            (*flows == 0 && !self.drifts.contains_key(key)).then_some(*key)
        };
        let mut empty: BTreeSet<u32> = said.0.iter().filter_map(is_empty).collect();
        let mut is_doubtful = false;
        if !empty.is_empty()
            && let Some(there) = around.identities(tables)?
        {
            let is_gone = |key: &u32| {
                let endpoint = endpoint_of_quota(*key);
                endpoint != HOST && !there.contains(&endpoint)
            };
            let (old, new): (Vec<u32>, Vec<u32>) = empty
                .iter()
                .copied()
                .filter(is_gone)
                .partition(|key| self.empty.contains(key));
            is_doubtful = !new.is_empty();
            for key in old {
                tables.remove_quota(key)?;
                empty.remove(&key);
            }
        }
        self.empty = empty;
        Ok(is_doubtful)
    }
}
