//! The groups of flows, by which the programs count flow marks. In a group without marks they look
//! up none.

use anyhow::{Context as _, Result};
use aya::Ebpf;
use datapath_common::abi::{CACHE_GROUPS, GROUP_COUNTED, PodTuple, given_up, group_of, map};

use crate::bpf::flow_maps::nat::table;
use crate::bpf::pins::Pins;
use crate::bpf::sys::table::Table;

/// Maps that hold notes of flows, and the one that counts them.
const NOTED: [&str; 5] = [
    map::MOVED_V4,
    map::MOVED_V6,
    map::INBOUND,
    map::STACK,
    map::CACHE_EPOCHS,
];

/// The groups' words.
pub(in crate::bpf) struct Groups(Table<u32, u64>);

impl Groups {
    /// Those of an object.
    ///
    /// # Errors
    /// When the map is missing or cannot be examined.
    pub(in crate::bpf) fn new(ebpf: &Ebpf) -> Result<Self> {
        table(ebpf, map::CACHE_EPOCHS).map(Self)
    }

    /// True if loading will create all maps of notes, so that none has an entry that is not
    /// counted.
    pub(in crate::bpf) fn will_be_new(pins: &Pins) -> bool {
        NOTED.iter().all(|name| !pins.map(name).exists())
    }

    /// Enables the programs' counts of flow marks. Must be called while there is no mark, and
    /// before a program is attached.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(in crate::bpf) fn count(&self) -> Result<()> {
        let groups: Vec<u32> = (0..CACHE_GROUPS).collect();
        let words = vec![GROUP_COUNTED; groups.len()];
        let counted = self.0.put_all(&groups, &words);
        counted.context("cannot write the map CACHE_EPOCHS")
    }

    /// Makes the programs always look up flow marks in the group of a tuple, whatever the count.
    /// Must be called before user space adds a mark, since it cannot add to the programs' per-CPU
    /// counts.
    ///
    /// # Errors
    /// If the kernel refuses. Then no mark must be added.
    pub(in crate::bpf) fn give_up(&self, tuple: &PodTuple) -> Result<()> {
        let group = group_of(tuple);
        let word = self.0.get(&group, 0);
        let word = word.context("cannot read the map CACHE_EPOCHS")?;
        match word.and_then(given_up) {
            // Counts that programs add in between are lost. That does no harm: no entry of the flow
            // cache can have been made with this word.
            Some(word) => self
                .0
                .put(&group, &word, 0)
                .context("cannot write the map CACHE_EPOCHS"),
            None => Ok(()),
        }
    }
}
