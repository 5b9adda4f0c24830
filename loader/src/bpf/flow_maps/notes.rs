//! The map of flow marks of the host's stack, for their renewal.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya_obj::generated::BPF_NOEXIST;
use datapath_common::abi::{Addr, AddressEntry, PodTuple, TrackedFlow, map};

use crate::bpf::flow_maps::cache::Cache;
use crate::bpf::flow_maps::flow_groups::Groups;
use crate::bpf::flow_maps::nat::table;
use crate::bpf::flow_maps::stack_flows::SharedStack;
use crate::bpf::jiffies::Jiffies;
use crate::bpf::sys::table::Table;
use crate::netfilter::service_nat::Notes;

/// The map of notes, and what else it takes to make one.
pub struct StackNotes {
    stack: SharedStack,
    addresses: Table<Addr, AddressEntry>,
    clock: Jiffies,
    cache: Cache,
    groups: Groups,
}

impl StackNotes {
    /// The maps of an object.
    ///
    /// # Errors
    /// When a map is missing or cannot be examined.
    pub(in crate::bpf) fn new(ebpf: &Ebpf, stack: SharedStack) -> Result<Self> {
        Ok(Self {
            stack,
            addresses: table(ebpf, map::ADDRESSES)?,
            cache: Cache::new(ebpf)?,
            groups: Groups::new(ebpf)?,
            clock: Jiffies::open().context("cannot load the program that reads jiffies")?,
        })
    }
}

impl Notes for StackNotes {
    fn now(&self) -> Result<u64> {
        self.clock.now().context("cannot read jiffies")
    }

    fn address(&self, address: IpAddr) -> Result<Option<AddressEntry>> {
        self.addresses
            .get(&Addr::from(address), 0)
            .context("cannot read the map ADDRESSES")
    }

    fn note(&self, tuple: &PodTuple, note: &TrackedFlow) -> Result<()> {
        let stack = self.stack.get();
        let there = stack.table.get(tuple, 0);
        if there.context("cannot read the map STACK")?.is_some() {
            return Ok(());
        }
        self.groups.give_up(tuple)?;
        match stack.table.put(tuple, note, BPF_NOEXIST.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return Ok(()),
            other => other.context("cannot write the map STACK")?,
        }
        self.cache.invalidate()
    }
}
