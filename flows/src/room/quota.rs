//! Recorded flow counts of the endpoints, compared with the flows that exist.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::mem;

use anyhow::Result;
use datapath_common::abi::{FlowQuotas, HOST, endpoint_of_quota};

use crate::census::Used;
use crate::sweep::SweepInput;
use crate::tables::Tables;
use crate::thread::report::Top;

/// Limits on flows that the programs were loaded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ports of translated flows.
    pub ports: u32,
    /// Most flows of each owner.
    pub quotas: FlowQuotas,
}

impl Limits {
    /// Part of its limit that the count of a key of `QUOTA` uses, from 0 to 1.
    #[must_use]
    pub(crate) fn used(&self, key: u32, flows: u32) -> f64 {
        f64::from(flows) / f64::from(self.quotas.of(key).max(1))
    }

    /// Largest part of one owner's quota that the flows can use which came between two moments,
    /// as if all were of one owner.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a level needs no more")]
    pub(crate) fn grown(&self, before: &Used, now: &Used) -> f64 {
        let grown = |of: fn(&Used) -> u64| of(now).saturating_sub(of(before)) as f64;
        let flows = grown(|used| used.flows_v4 + used.flows_v6);
        let least = self.quotas.endpoint.min(self.quotas.host);
        let inbound = grown(|used| used.inbound) / f64::from(self.quotas.inbound.max(1));
        inbound.max(flows / f64::from(least.max(1)))
    }
}

/// Recorded flow counts, by key of `QUOTA`.
#[derive(Debug)]
pub(crate) struct QuotaTable(HashMap<u32, u32>);

impl QuotaTable {
    /// Current counts.
    pub(crate) fn read(tables: &impl Tables) -> Result<Self> {
        let mut written = HashMap::new();
        tables.quotas(&mut |key, flows| {
            written.insert(key, flows);
        })?;
        Ok(Self(written))
    }

    /// Largest part of its quota that an endpoint uses, from 0 to 1.
    pub(crate) fn fullest(&self, limits: &Limits) -> f64 {
        let used = self.0.iter();
        let used = used.map(|(key, flows)| limits.used(*key, *flows));
        used.fold(0.0, f64::max)
    }

    /// The keys of endpoints that use more than a part of their quota.
    pub(crate) fn above(&self, limits: &Limits, part: f64) -> HashSet<u32> {
        let used = self.0.iter();
        let above = used.filter(|(key, flows)| limits.used(**key, **flows) > part);
        above.map(|(key, _)| *key).collect()
    }

    /// The endpoint with the most flows, if any has one.
    pub(crate) fn top(&self) -> Option<Top> {
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
fn drift(before: i64, after: i64, counts: i64) -> i64 {
    let (least, most) = (before.min(after) - counts, before.max(after) - counts);
    // Nought if that is among them, or else what is nearest to it.
    0_i64.clamp(least, most)
}

/// Differences that the last sweep found.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    drifts: HashMap<u32, i64>,
    /// Counts that were nought, and rightly so.
    empty: BTreeSet<u32>,
}

impl Quotas {
    /// Corrects the counts that are off now as they were at the last sweep, by the certain part of
    /// both. Returns the number of corrected counts. A new flow may be counted before it is in its
    /// table at one moment, but not at two. Nothing may have been removed since the flows were
    /// listed.
    pub(crate) fn settle(
        &mut self,
        tables: &impl Tables,
        before: &QuotaTable,
        counts: &HashMap<u32, u32>,
    ) -> Result<u64> {
        let after = QuotaTable::read(tables)?;
        let written = before.0.keys().chain(after.0.keys());
        let keys: BTreeSet<u32> = written.chain(counts.keys()).copied().collect();
        let last = mem::take(&mut self.drifts);
        let mut corrected = 0;
        for key in keys {
            let counts = i64::from(counts.get(&key).copied().unwrap_or(0));
            let drift = drift(before.of(key), after.of(key), counts);
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
    pub(crate) fn clean(
        &mut self,
        tables: &impl Tables,
        written: &QuotaTable,
        input: &SweepInput,
    ) -> Result<bool> {
        let is_empty = |(key, flows): (&u32, &u32)| {
            (*flows == 0 && !self.drifts.contains_key(key)).then_some(*key)
        };
        let mut empty: BTreeSet<u32> = written.0.iter().filter_map(is_empty).collect();
        let mut is_doubtful = false;
        if !empty.is_empty()
            && let Some(identities) = input.identities(tables)?
        {
            let is_gone = |key: &u32| {
                let endpoint = endpoint_of_quota(*key);
                endpoint != HOST && !identities.contains(&endpoint)
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
