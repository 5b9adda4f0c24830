//! Cost of a run.

use std::collections::BTreeMap;

use super::helper::Helper;
use super::lines::Origin;

/// Cost of a program for one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Instructions that the verifier leaves, without those of helpers.
    pub instructions: u64,
    /// Jumps that were taken. A processor that has not executed one recently stalls after it.
    pub jumps: u64,
    /// Calls of each helper, by its name.
    pub helpers: BTreeMap<&'static str, u64>,
    /// Look-ups in each map, by its name; they are calls of a helper, too.
    pub lookups: BTreeMap<String, u64>,
    /// Instructions by their origin.
    pub profile: BTreeMap<Origin, u64>,
}

/// Counts while a program runs.
#[derive(Debug)]
pub(super) struct Tally {
    slots: Vec<u64>,
    jumps: u64,
    helpers: BTreeMap<Helper, u64>,
    lookups: BTreeMap<String, u64>,
}

impl Tally {
    /// A tally for a program of this many slots.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: vec![0; slots],
            jumps: 0,
            helpers: BTreeMap::new(),
            lookups: BTreeMap::new(),
        }
    }

    pub(super) fn executed(&mut self, slot: usize, weight: u8) {
        self.slots[slot] += u64::from(weight);
    }

    pub(super) fn jumped(&mut self, weight: u8) {
        self.jumps += u64::from(weight);
    }

    pub(super) fn called(&mut self, helper: Helper) {
        *self.helpers.entry(helper).or_default() += 1;
    }

    pub(super) fn looked_up(&mut self, map: &str) {
        *self.lookups.entry(map.to_owned()).or_default() += 1;
    }

    /// The result; `origin` gives the origin of a slot.
    pub(super) fn finish(self, origin: impl Fn(usize) -> Origin) -> Cost {
        let mut profile = BTreeMap::new();
        for (slot, count) in self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
        {
            *profile.entry(origin(slot)).or_default() += count;
        }
        let helpers = self.helpers.into_iter();
        Cost {
            instructions: self.slots.iter().sum(),
            jumps: self.jumps,
            helpers: helpers
                .map(|(helper, calls)| (helper.name(), calls))
                .collect(),
            lookups: self.lookups,
            profile,
        }
    }
}
