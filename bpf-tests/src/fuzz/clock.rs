//! The kernel's clock, as the programs see it.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result};
use datapath_common::counter::Program;

use super::batch::mixed;
use super::node;
use super::remembered::Tables;
use crate::testrun::tables::{Given, Runner};

/// Packets that are sent to read the clock: some of them are whole.
const PROBES: u64 = 64;

/// How far the kernel's jiffies may be behind its clock: while the CPU that counts them does not run,
/// another one takes over after five ticks of its own (`MAX_STALLED_JIFFIES`,
/// kernel/time/tick-sched.c). Twice that, so that nothing is planted that seems to come from the
/// future, and so to be very old.
const STALLED: u64 = 10;

/// The kernel's time, in jiffies.
pub(super) struct Clock {
    jiffies: u64,
    per_second: u32,
    read: Instant,
}

impl Clock {
    /// Reads it from what a program remembers of a packet.
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
