//! Renewal of flow marks from conntrack: at the agent's start, because the programs may have missed
//! flows, and when marks are switched on.

use std::collections::HashMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use datapath_common::abi::{AddressEntry, PodTuple, TrackedFlow};

use super::notes::{is_translated, note};
use crate::netfilter::conntrack::{Conntrack, Entry};

/// Where notes are kept.
pub trait Notes: Send {
    /// The time of the programs, in jiffies.
    ///
    /// # Errors
    /// When the kernel refuses, as for the others here.
    fn now(&self) -> Result<u64>;

    /// The datapath's entry of an address of this node.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn address(&self, address: IpAddr) -> Result<Option<AddressEntry>>;

    /// Notes a flow of the host's stack, unless there is a note of it already.
    ///
    /// # Errors
    /// When the kernel refuses, for want of room too.
    fn note(&self, tuple: &PodTuple, note: &TrackedFlow) -> Result<()>;
}

/// Translated flows, by their addresses that may belong to pods which the datapath does not have
/// yet.
#[derive(Default)]
pub struct Renewal {
    waiting: HashMap<IpAddr, Vec<Entry>>,
}

impl Renewal {
    /// Notes every translated flow of the pods that the datapath knows; keeps the others, whose pods
    /// may be about to be made known.
    ///
    /// # Errors
    /// When conntrack or a map cannot be read or written; what was noted stays.
    pub fn begin(notes: &impl Notes) -> Result<Self> {
        let mut renewal = Self::default();
        let mut entries = Vec::new();
        let mut conntrack = Conntrack::open()?;
        conntrack.dump(&mut |entry| {
            if is_translated(entry) {
                entries.push(*entry);
            }
        })?;
        let now = notes.now()?;
        for entry in entries {
            if !put(notes, now, &entry)? {
                for address in [entry.reply.source.ip(), entry.reply.destination.ip()] {
                    renewal.waiting.entry(address).or_default().push(entry);
                }
            }
        }
        Ok(renewal)
    }

    /// Notes the flows of a pod that the datapath has come to know.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub fn known(&mut self, notes: &impl Notes, pod: IpAddr) -> Result<()> {
        let entries = self.waiting.remove(&pod).unwrap_or_default();
        if !entries.is_empty() {
            let now = notes.now()?;
            for entry in entries {
                put(notes, now, &entry)?;
            }
        }
        Ok(())
    }
}

/// Notes a flow; false when no pod that the datapath knows is in it.
fn put(notes: &impl Notes, now: u64, entry: &Entry) -> Result<bool> {
    let found = note(entry, now, |address| notes.address(address))?;
    let Some((tuple, value)) = found else {
        return Ok(false);
    };
    notes
        .note(&tuple, &value)
        .context("record a flow of conntrack")?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};

    use datapath_common::masquerade::PoolPolicy;

    use super::*;
    use crate::kernel::fixture::address_entry;
    use crate::netfilter::conntrack::Tuple;

    #[derive(Default)]
    struct Maps {
        pods: RefCell<BTreeSet<IpAddr>>,
        noted: RefCell<BTreeMap<PodTuple, TrackedFlow>>,
    }

    impl Notes for Maps {
        fn now(&self) -> Result<u64> {
            Ok(1)
        }

        fn address(&self, address: IpAddr) -> Result<Option<AddressEntry>> {
            let entry = address_entry(0, PoolPolicy::Masquerade);
            Ok(self.pods.borrow().contains(&address).then_some(entry))
        }

        fn note(&self, tuple: &PodTuple, note: &TrackedFlow) -> Result<()> {
            self.noted.borrow_mut().insert(*tuple, *note);
            Ok(())
        }
    }

    #[test]
    fn a_pod_that_comes_to_be_known_gets_its_notes() {
        let tuple = |source: &str, destination: &str| Tuple {
            protocol: 6,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        };
        let entry = Entry {
            original: tuple("10.0.1.20:4000", "172.20.0.1:80"),
            reply: tuple("10.0.9.9:8080", "10.0.1.20:4000"),
            tcp_state: None,
            status: 1 << 5,
            id: 1,
        };
        let pod = IpAddr::from([10, 0, 1, 20]);
        let maps = Maps::default();
        let mut renewal = Renewal::default();
        renewal.waiting.insert(pod, vec![entry]);
        renewal.known(&maps, IpAddr::from([10, 0, 1, 21])).unwrap();
        assert!(maps.noted.borrow().is_empty());
        maps.pods.borrow_mut().insert(pod);
        renewal.known(&maps, pod).unwrap();
        assert_eq!(maps.noted.borrow().len(), 1);
        renewal.known(&maps, pod).unwrap();
        assert_eq!(maps.noted.borrow().len(), 1);
    }
}
