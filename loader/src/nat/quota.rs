//! What endpoints are said to have, held against the flows that there are.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;
use datapath_common::abi::endpoint_of_quota;

use super::sweep::Surroundings;
use super::tables::Tables;
use crate::bpf::DatapathSettings;

/// The endpoint that is the host.
const HOST: u32 = 0;

/// What the programs were told of how much there may be.
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
    /// What these settings come to.
    #[must_use]
    pub fn of(settings: &DatapathSettings) -> Self {
        Self {
            ports: settings.ports().count(),
            per_endpoint: settings.flows_per_endpoint,
            inbound_per_endpoint: settings.inbound_per_endpoint,
            host: settings.flows_of_host,
        }
    }

    /// How much of what is allowed the count of a key of `QUOTA` is, from 0 to 1.
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

/// What became of the counts.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// How many were corrected.
    pub(super) corrected: u64,
    /// Whether there are some that go at the next sweep, if it finds them as they are.
    pub(super) is_doubtful: bool,
}

/// What differed at the last sweep.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    drifts: HashMap<u32, i64>,
    /// Counts that were nought, and rightly so.
    empty: BTreeSet<u32>,
}

impl Quotas {
    /// Corrects what differs by as much as it did at the last sweep, and removes the counts of
    /// endpoints that are gone and were at the last sweep. Flows that come and go while they are
    /// counted make a difference too, but not the same one twice.
    ///
    /// An endpoint that is there keeps its count: flows that it opens between the look at it and
    /// its removal would not be counted.
    pub(super) fn settle(
        &mut self,
        tables: &impl Tables,
        counted: &HashMap<u32, u32>,
        around: &Surroundings,
    ) -> Result<Settled> {
        let mut said = HashMap::new();
        tables.quotas(&mut |key, flows| {
            said.insert(key, flows);
        })?;
        let mut drifts = HashMap::new();
        let mut empty = BTreeSet::new();
        let mut settled = Settled::default();
        let keys: BTreeSet<u32> = said.keys().chain(counted.keys()).copied().collect();
        for key in keys {
            let there = i64::from(counted.get(&key).copied().unwrap_or(0));
            let is_said = said.get(&key).copied();
            let drift = i64::from(is_said.unwrap_or(0)) - there;
            if drift != 0 {
                if self.drifts.get(&key) == Some(&drift) {
                    tables.correct_quota(key, drift)?;
                    settled.corrected += 1;
                } else {
                    drifts.insert(key, drift);
                }
            } else if is_said == Some(0) {
                empty.insert(key);
            }
        }
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
            settled.is_doubtful = !new.is_empty();
            for key in old {
                tables.remove_quota(key)?;
                empty.remove(&key);
            }
        }
        (self.drifts, self.empty) = (drifts, empty);
        Ok(settled)
    }
}
