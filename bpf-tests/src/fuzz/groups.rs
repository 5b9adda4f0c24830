//! The counts of flow entries in the words of the groups of flows.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use datapath_common::abi::{GROUP_COUNTED, GROUP_NOTE, PodTuple, group_of, map};
use testkit::testrun::Programs;
use testkit::testrun::tables::Table;

/// The words, all of which count entries.
pub(super) struct Groups {
    words: Table<u32, u64>,
    /// Groups that have had entries.
    known: BTreeSet<u32>,
}

impl Groups {
    /// The words of programs without entries.
    pub(super) fn of(programs: &Programs) -> Result<Self> {
        programs.count_notes()?;
        Ok(Self {
            words: programs.table(map::CACHE_EPOCHS)?,
            known: BTreeSet::new(),
        })
    }

    /// Sets the counts to those of these entries.
    pub(super) fn set(&mut self, notes: &[PodTuple]) -> Result<()> {
        let counts = self.counts(notes);
        for (group, notes) in &counts {
            let word = GROUP_COUNTED + notes * GROUP_NOTE;
            self.words.put(group, &word)?;
        }
        Ok(())
    }

    /// Reports groups with wrong counts for these entries.
    pub(super) fn compare(&mut self, notes: &[PodTuple], said: &mut Vec<String>) -> Result<()> {
        for (group, notes) in self.counts(notes) {
            let word = self.words.get(&group)?.unwrap_or_default();
            let counted = (word & !GROUP_COUNTED) / GROUP_NOTE;
            if counted != notes {
                said.push(format!(
                    "group {group} has {notes} notes, {counted} are counted"
                ));
            }
        }
        Ok(())
    }

    /// Number of these entries in each group that has had some.
    fn counts(&mut self, notes: &[PodTuple]) -> BTreeMap<u32, u64> {
        let mut counts: BTreeMap<u32, u64> = self.known.iter().map(|group| (*group, 0)).collect();
        for tuple in notes {
            *counts.entry(group_of(tuple)).or_default() += 1;
        }
        self.known = counts.keys().copied().collect();
        counts
    }
}
