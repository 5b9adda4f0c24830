//! The programs run in this process, one packet at a time, to count what they execute: times differ from
//! run to run and from machine to machine, instructions do not.
//!
//! It is no verifier: it takes programs that the kernel takes, and fails where they do what it does not
//! know. That it makes of packets what the kernel makes of them is tested.

mod arithmetic;
mod cost;
mod dead;
mod helper;
mod instruction;
mod lines;
mod map;
mod memory;
mod program;
mod run;
mod skb;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use datapath_common::abi::map as name;
use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::Outcome;
use zerocopy::FromBytes as _;

pub use cost::Cost;
pub use lines::Origin;

use helper::Host;
use memory::Memory;
use program::Image;
use testkit::testrun::{Input, Output, Programs};

/// The programs, their maps, and what helpers know.
#[derive(Clone, Debug)]
pub struct Machine {
    image: Image,
    host: Host,
    devices: BTreeMap<u32, [u8; 6]>,
}

impl Machine {
    /// The programs with the settings of those that the kernel has, and with what lies in their maps;
    /// `devices` are the MACs by which a packet is known to be for the host. Counters begin at 0.
    ///
    /// # Errors
    /// When the maps cannot be read, or the object has what the interpreter does not know.
    pub fn beside(programs: &Programs, devices: &[(u32, [u8; 6])]) -> Result<Self> {
        Ok(Self {
            image: Image::new(loader::bpf::OBJECT, &programs.snapshot()?)?,
            host: Host {
                // Far enough after all times in the maps.
                jiffies: 1 << 40,
                random: 1,
            },
            devices: devices.iter().copied().collect(),
        })
    }

    /// Lets so many jiffies pass.
    pub fn pass(&mut self, jiffies: u64) {
        self.host.jiffies += jiffies;
    }

    /// The counter of an outcome.
    ///
    /// # Errors
    /// When the object has no counters.
    pub fn counter(&self, program: Program, outcome: Outcome) -> Result<Counter> {
        let mut maps = self.image.maps.iter();
        let counters = maps.find(|map| map.name == name::COUNTERS);
        let counters = counters.context("the object has no counters")?;
        let place = counters.find(&program.slot(outcome).to_ne_bytes());
        let value = place.and_then(|place| counters.values().get(place..));
        let counter = value.and_then(|value| Counter::read_from_prefix(value).ok());
        Ok(counter.context("no counter of the outcome")?.0)
    }

    /// Runs a program once.
    ///
    /// # Errors
    /// When it does what the kernel would not allow for, or what the interpreter does not know.
    pub fn run(&mut self, program: Program, input: &Input) -> Result<(Output, Cost)> {
        let mac = self.devices.get(&input.ifindex);
        let mac = mac.with_context(|| format!("there is no device {}", input.ifindex))?;
        let code = self.image.programs.get(program.name());
        let code = code.with_context(|| format!("the object has no {}", program.name()))?;
        let mut tally = cost::Tally::new(code.code.len());
        let skb = skb::Skb::new(input, *mac);
        let mut memory = Memory::new(skb, &mut self.image.maps);
        let code_returned = run::run(code, &mut memory, &mut self.host, &mut tally)
            .with_context(|| program.name())?;
        let output = Output {
            code: code_returned,
            frame: memory.skb.frame,
            mark: memory.skb.mark,
        };
        Ok((output, tally.finish(|slot| code.lines.of(slot))))
    }
}
