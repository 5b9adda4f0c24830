//! The kernel's clock, as the programs see it.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result};
use datapath_common::counter::Program;
use testkit::testrun::tables::{Given, Runner};

use super::batch::mixed;
use super::node;
use super::snapshot::Tables;

/// Packets that are sent to read the clock: some of them are whole.
const PROBES: u64 = 64;

/// Limit for the delay of the kernel's jiffies relative to its clock, twice the maximum.
///
/// While the CPU that counts them is halted, another one takes over after five ticks of its own
/// (`MAX_STALLED_JIFFIES`, kernel/time/tick-sched.c). A preloaded entry must not seem to come from
/// the future, as it would count as very old.
const STALLED: u64 = 10;

/// The kernel's time, in jiffies.
pub(super) struct Clock {
    jiffies: u64,
    per_second: u32,
    read: Instant,
}

impl Clock {
    /// Reads it from a program's entry for a packet.
    pub(super) fn read(runners: &BTreeMap<Program, Runner>, tables: &Tables) -> Result<Self> {
        let runner = runners.get(&Program::ToNetwork).context("a program")?;
        for seed in 0..PROBES {
            let (frame, pod) = node::probe(mixed(seed));
            runner.run(&Given {
                frame: &frame,
                ifindex: node::ENIS[0].1.ifindex,
                ingress_ifindex: pod,
                mark: 0,
                gso_size: 0,
                is_summed: false,
            })?;
        }
        let jiffies = tables.last_seen()?.context("the probes open no flow")?;
        tables.clear()?;
        Ok(Self {
            jiffies,
            per_second: loader::bpf::jiffies_per_second()?,
            read: Instant::now(),
        })
    }

    /// A moment ago: never ahead of the time that the programs see.
    pub(super) fn now(&self) -> Result<u64> {
        let elapsed = self.read.elapsed().as_millis() * u128::from(self.per_second) / 1000;
        Ok(self.jiffies + u64::try_from(elapsed)? - STALLED)
    }
}
