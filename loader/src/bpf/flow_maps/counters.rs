//! The counters of the programs, summed over the CPUs.

use std::os::fd::AsFd as _;

use anyhow::{Context, Result, bail};
use aya::Ebpf;
use aya::maps::{Map, MapData, PerCpuArray};
use datapath_common::abi::map;
use datapath_common::counter::{Counter, NatStat, Program, nat_at_once_slot};
use datapath_common::outcome::Outcome;
use flows::{NatCounters, REFUSALS, Refused};
use ipam::Family;

/// The counters of the programs.
pub(super) struct Counters {
    nat: PerCpuArray<MapData, u64>,
    /// Outcomes of packets by program.
    outcomes: PerCpuArray<MapData, Counter>,
}

impl Counters {
    /// Takes the map of translation's counters out of the object.
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self> {
        let nat = ebpf
            .take_map(map::NAT_STATS)
            .with_context(|| format!("the eBPF object has no map {}", map::NAT_STATS))?;
        let outcomes = match ebpf.map(map::COUNTERS) {
            Some(Map::PerCpuArray(data)) => data.fd().as_fd().try_clone_to_owned(),
            Some(_other) => bail!("the map {} has another type", map::COUNTERS),
            None => bail!("the eBPF object has no map {}", map::COUNTERS),
        };
        let outcomes =
            outcomes.with_context(|| format!("cannot hold the map {}", map::COUNTERS))?;
        Ok(Self {
            outcomes: PerCpuArray::try_from(Map::PerCpuArray(MapData::from_fd(outcomes)?))?,
            nat: PerCpuArray::try_from(nat)
                .with_context(|| format!("the map {} has another type", map::NAT_STATS))?,
        })
    }

    pub(super) fn nat(&self) -> Result<NatCounters> {
        let mut counters = NatCounters::default();
        let sum = |slot| -> Result<u64> {
            let values = self.nat.get(&slot, 0);
            let values =
                values.with_context(|| format!("cannot read the map {}", map::NAT_STATS))?;
            let sum = |sum: u64, one: &u64| sum.wrapping_add(*one);
            Ok(values.iter().fold(0, sum))
        };
        for family in Family::ALL {
            let is_v4 = family == Family::V4;
            let at_once = sum(nat_at_once_slot(is_v4))?;
            for stat in NatStat::ALL {
                let more = if stat.has_those_at_once() { at_once } else { 0 };
                let all = sum(stat.slot(is_v4))?.wrapping_add(more);
                counters.set(family, stat, all);
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
