//! Entries that the CPUs may add to shared tables before they count each.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, PerCpuValues};
use aya::util::online_cpus;
use datapath_common::abi::{SharedTable, map};

use super::per_cpu;

/// The credit of each CPU.
pub(super) struct Credit {
    table: Mutex<PerCpuArray<MapData, u64>>,
    /// The numbers of the CPUs that pass packets.
    online: Vec<u32>,
    /// Number of CPUs that the kernel has slots for.
    slots: usize,
}

impl Credit {
    /// The credit in the map of an object.
    pub(super) fn new(ebpf: &Ebpf) -> Result<Self> {
        let unknown = |(path, error)| {
            anyhow::Error::new(error).context(format!("cannot read the CPUs from {path}"))
        };
        Ok(Self {
            table: Mutex::new(per_cpu::array(ebpf, map::CREDIT)?),
            online: online_cpus().map_err(unknown)?,
            slots: per_cpu::cpus()?,
        })
    }

    /// Shares a number of entries among the CPUs.
    pub(super) fn set(&self, table: SharedTable, entries: u32) -> Result<()> {
        let cpus = u32::try_from(self.online.len()).unwrap_or(u32::MAX);
        let each = entries.checked_div(cpus).unwrap_or_default();
        let of = |cpu| {
            let is_online = u32::try_from(cpu).is_ok_and(|cpu| self.online.contains(&cpu));
            if is_online { each.into() } else { 0 }
        };
        let values = PerCpuValues::try_from((0..self.slots).map(of).collect::<Vec<u64>>())
            .context("the number of CPUs is unknown")?;
        let mut credit = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let written = credit.set(table as u32, values, 0);
        written.with_context(|| format!("cannot write the map {}", map::CREDIT))
    }
}
