//! The gateways' entries for the programs, and their renewal.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aya::Ebpf;
use datapath_common::abi::{GatewayEntry, map};

use crate::bpf::flow_maps::nat::table;
use crate::bpf::jiffies::{Jiffies, jiffies_per_second};
use crate::bpf::sys::table::Table;
use crate::observation::gateways::Gateway;

/// Validity of a published MAC: while the agent is replaced, the programs leave the look-up to the
/// kernel.
const LEASE: Duration = Duration::from_secs(10);
/// The time after which entries are written again. The kernel reports no change of a map.
const RENEWAL: Duration = Duration::from_secs(3);

/// The map of gateways.
pub(in crate::bpf) struct Gateways {
    table: Table<u32, GatewayEntry>,
    clock: Jiffies,
    hertz: u32,
    /// The entries that were written, by slot.
    written: BTreeMap<u32, GatewayEntry>,
    renewed: Option<Instant>,
}

/// The entry of a gateway without its end of validity.
fn entry(gateway: &Gateway) -> GatewayEntry {
    gateway
        .macs()
        .map_or(GatewayEntry::UNKNOWN, |macs| GatewayEntry {
            until: 0,
            ifindex: gateway.ifindex,
            macs,
        })
}

impl Gateways {
    /// That of an object.
    ///
    /// # Errors
    /// When the map is missing or cannot be read.
    pub(in crate::bpf) fn new(ebpf: &Ebpf) -> Result<Self> {
        let table: Table<u32, GatewayEntry> = table(ebpf, map::GATEWAYS)?;
        let mut written = BTreeMap::new();
        let read = table.each(|slot, entry| {
            if *entry != GatewayEntry::UNKNOWN {
                written.insert(*slot, *entry);
            }
        });
        read.context("cannot read the map GATEWAYS")?;
        Ok(Self {
            table,
            clock: Jiffies::open().context("cannot load the program that reads jiffies")?,
            hertz: jiffies_per_second()?,
            written,
            renewed: None,
        })
    }

    /// Gives the programs these gateways, as far as their MACs are known, and no others.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(in crate::bpf) fn know(&mut self, gateways: &[Gateway]) -> Result<()> {
        let wanted: BTreeMap<_, _> = gateways.iter().map(|g| (g.slot(), entry(g))).collect();
        let is_due = self.renewed.is_none_or(|at| at.elapsed() >= RENEWAL);
        let is_same = wanted.keys().eq(self.written.keys())
            && wanted.iter().all(|(slot, of)| self.is_written(*slot, of));
        if is_same && !is_due {
            return Ok(());
        }
        let gone = self.written.keys().copied();
        let gone: Vec<_> = gone.filter(|slot| !wanted.contains_key(slot)).collect();
        for slot in gone {
            self.put(slot, GatewayEntry::UNKNOWN)?;
            self.written.remove(&slot);
        }
        let now = self.clock.now();
        let now = now.context("cannot read the time in jiffies")?;
        let until = now + LEASE.as_secs() * u64::from(self.hertz);
        for (slot, entry) in wanted {
            // The MAC is written while the entry is invalid, so that no program reads half of it.
            if !self.is_written(slot, &entry) || entry == GatewayEntry::UNKNOWN {
                self.put(slot, entry)?;
            }
            if entry != GatewayEntry::UNKNOWN {
                self.put(slot, GatewayEntry { until, ..entry })?;
            }
        }
        self.renewed = Some(Instant::now());
        Ok(())
    }

    /// True if a slot has this entry, whatever its end of validity.
    fn is_written(&self, slot: u32, entry: &GatewayEntry) -> bool {
        let written = self.written.get(&slot);
        written.is_some_and(|of| (of.ifindex, of.macs) == (entry.ifindex, entry.macs))
    }

    fn put(&mut self, slot: u32, entry: GatewayEntry) -> Result<()> {
        let written = self.table.put(&slot, &entry, 0);
        written.context("cannot write the map GATEWAYS")?;
        self.written.insert(slot, entry);
        Ok(())
    }
}
