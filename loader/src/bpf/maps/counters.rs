//! The programs' counters, by name.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use aya::maps::{MapData, PerCpuArray};
use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::{DropReason, Outcome, Verdict};

/// Every outcome of every program, zero or not, summed over the CPUs.
pub(in crate::bpf) fn read(
    map: &PerCpuArray<MapData, Counter>,
) -> Result<BTreeMap<(Program, Outcome), Counter>> {
    let verdicts = Verdict::ALL.iter().copied().map(Outcome::Passed);
    let reasons = DropReason::ALL.iter().copied().map(Outcome::Dropped);
    let outcomes: Vec<Outcome> = verdicts.chain(reasons).collect();
    let mut counters = BTreeMap::new();
    for program in Program::ALL {
        for outcome in &outcomes {
            let values = map
                .get(&program.slot(*outcome), 0)
                .context("cannot read the map COUNTERS")?;
            counters.insert((program, *outcome), sum(values.iter()));
        }
    }
    Ok(counters)
}

fn sum<'a>(values: impl Iterator<Item = &'a Counter>) -> Counter {
    values.fold(Counter::default(), |sum, value| Counter {
        packets: sum.packets.wrapping_add(value.packets),
        bytes: sum.bytes.wrapping_add(value.bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_cpus_add_up() {
        let values = [
            Counter {
                packets: 1,
                bytes: 60,
            },
            Counter {
                packets: 2,
                bytes: 3000,
            },
        ];
        let total = sum(values.iter());
        assert_eq!((total.packets, total.bytes), (3, 3060));
    }
}
