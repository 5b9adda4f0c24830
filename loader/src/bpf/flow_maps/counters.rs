//! The counters of the programs, summed over the CPUs.

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use datapath_common::abi::map;
use datapath_common::counter::{Counter, NatStat, Program, nat_at_once_slot};
use datapath_common::outcome::Outcome;
use flows::{NatCounters, REFUSALS, Refused};
use ipam::Family;

use super::per_cpu::{self, Sums};

/// The counters of the programs.
pub(super) struct Counters {
    nat: Sums,
    /// Outcomes of packets by program.
    outcomes: PerCpuArray<MapData, Counter>,
}

impl Counters {
    /// The counters of an object.
    pub(super) fn new(ebpf: &Ebpf) -> Result<Self> {
        Ok(Self {
            nat: Sums::new(ebpf, map::NAT_STATS)?,
            outcomes: per_cpu::array(ebpf, map::COUNTERS)?,
        })
    }

    pub(super) fn nat(&self) -> Result<NatCounters> {
        let sums = self.nat.read()?;
        let sum = |slot: u32| {
            let sum = usize::try_from(slot).ok().and_then(|slot| sums.get(slot));
            sum.copied().unwrap_or(0)
        };
        let mut counters = NatCounters::default();
        for family in Family::ALL {
            let is_v4 = family == Family::V4;
            let at_once = sum(nat_at_once_slot(is_v4));
            for stat in NatStat::ALL {
                let more = if stat.has_those_at_once() { at_once } else { 0 };
                counters.set(family, stat, sum(stat.slot(is_v4)).wrapping_add(more));
            }
        }
        Ok(counters)
    }

    pub(super) fn refused(&self) -> Result<Refused> {
        let mut refused = Refused::default();
        for (reason, count) in REFUSALS.into_iter().zip(&mut refused) {
            for program in Program::ALL {
                let slot = program.slot(Outcome::Dropped(reason));
                let values = self.outcomes.get(&slot, 0);
                let values =
                    values.with_context(|| format!("cannot read the map {}", map::COUNTERS))?;
                let packets = values.iter().map(|counter| counter.packets);
                *count = packets.fold(*count, u64::wrapping_add);
            }
        }
        Ok(refused)
    }
}
