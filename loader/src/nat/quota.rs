//! What endpoints are said to have, held against the flows that there are.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;

use super::tables::Tables;

/// What differed at the last sweep.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    drifts: HashMap<u32, i64>,
    /// Endpoints that had no flow, and were said to have none.
    empty: BTreeSet<u32>,
}

impl Quotas {
    /// Corrects what differs by as much as it did at the last sweep, and removes the counts of
    /// endpoints that have had nothing since. Flows that come and go while they are counted make a
    /// difference too, but not the same one twice. How many were corrected.
    pub(super) fn settle(
        &mut self,
        tables: &impl Tables,
        counted: &HashMap<u32, u32>,
    ) -> Result<u64> {
        let mut said = HashMap::new();
        tables.quotas(&mut |endpoint, flows| {
            said.insert(endpoint, flows);
        })?;
        let mut drifts = HashMap::new();
        let mut empty = BTreeSet::new();
        let mut corrected = 0;
        let endpoints: BTreeSet<u32> = said.keys().chain(counted.keys()).copied().collect();
        for endpoint in endpoints {
            let there = i64::from(counted.get(&endpoint).copied().unwrap_or(0));
            let is_said = said.get(&endpoint).copied();
            let drift = i64::from(is_said.unwrap_or(0)) - there;
            if drift != 0 {
                if self.drifts.get(&endpoint) == Some(&drift) {
                    tables.correct_quota(endpoint, drift)?;
                    corrected += 1;
                } else {
                    drifts.insert(endpoint, drift);
                }
            } else if is_said == Some(0) {
                if self.empty.contains(&endpoint) {
                    tables.remove_quota(endpoint)?;
                } else {
                    empty.insert(endpoint);
                }
            }
        }
        (self.drifts, self.empty) = (drifts, empty);
        Ok(corrected)
    }
}
