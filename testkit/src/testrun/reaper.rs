//! The reaper, as user space calls it, and the tables of the agent's sweeper.

use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, anyhow, bail};
use aya::maps::{Map, MapData, PerCpuArray, PerCpuValues};
use aya::programs::SchedClassifier;
use aya::util::nr_cpus;
use datapath_common::abi::{
    CACHE_GROUPS, Datagram, DatagramKey, Flow, FlowKey, FragmentRing, GROUP_COUNTED, LinkLocalKey,
    LinkLocals, Moved, PodTuple, PortBlock, PortBlockKey, Quota, REAP_BATCH, ReapFlow, ReapHeader,
    ReapKind, ReapNote, Room, SHARED_TABLES, ShareKey, TrackedFlow, map,
};
use datapath_common::config;
use loader::bpf::{BlockedSignals, NatTables};
use zerocopy::{Immutable, IntoBytes};

use super::Programs;
use super::tables::{Given, Runner};

/// The reaper program. It must not outlive the programs.
#[derive(Clone, Copy, Debug)]
pub struct Reaper {
    program: Runner,
    /// A device of the namespace.
    ifindex: u32,
}

impl Reaper {
    /// Requests the removal of translated flows, each with the time it was last seen; returns the
    /// number of removed flows.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn flows(&self, flows: &[(FlowKey, u64)]) -> Result<u32> {
        let items: Vec<_> = flows
            .iter()
            .map(|(key, last_seen)| ReapFlow {
                key: *key,
                last_seen: *last_seen,
            })
            .collect();
        self.ask(ReapKind::Flows, &items)
    }

    /// Requests the removal of flows from the outside.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn inbound(&self, flows: &[(PodTuple, u64)]) -> Result<u32> {
        self.notes(ReapKind::Inbound, flows)
    }

    /// Requests the removal of flows through the stack.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn stack(&self, flows: &[(PodTuple, u64)]) -> Result<u32> {
        self.notes(ReapKind::Stack, flows)
    }

    fn notes(self, kind: ReapKind, flows: &[(PodTuple, u64)]) -> Result<u32> {
        let items: Vec<_> = flows
            .iter()
            .map(|(key, last_seen)| ReapNote {
                key: *key,
                last_seen: *last_seen,
            })
            .collect();
        self.ask(kind, &items)
    }

    fn ask<T: IntoBytes + Immutable>(self, kind: ReapKind, items: &[T]) -> Result<u32> {
        let mut removed = 0;
        for batch in items.chunks(REAP_BATCH) {
            let count = u8::try_from(batch.len()).context("a batch")?;
            let mut request = ReapHeader::new(kind, count).as_bytes().to_vec();
            request.extend(batch.as_bytes());
            let made = self.program.run(&Given {
                frame: &request,
                ifindex: self.ifindex,
                ingress_ifindex: 0,
                mark: 0,
                gso_size: 0,
                is_summed: false,
            })?;
            removed += u32::try_from(made.code).context("the reaper's answer")?;
        }
        Ok(removed)
    }
}

impl Programs {
    /// The reaper, loaded with the first call. Runs need a device of the namespace.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn reaper(&mut self, ifindex: u32) -> Result<Reaper> {
        Ok(Reaper {
            program: Runner::of(self.reaper_program()?)?,
            ifindex,
        })
    }

    /// The maps of translation and the reaper, as the agent's sweeper has them. Takes the counters
    /// of translation out of the object, so that it works once.
    ///
    /// # Errors
    /// When the kernel refuses the reaper.
    pub fn nat_tables(&mut self) -> Result<NatTables> {
        let reaper = self.reaper_program()?.fd()?.as_fd().try_clone_to_owned()?;
        NatTables::new(&self.ebpf, reaper, loader::bpf::jiffies_per_second()?)
    }

    fn reaper_program(&mut self) -> Result<&mut SchedClassifier> {
        let name = config::program::REAPER;
        let program = self.ebpf.program_mut(name);
        let program: &mut SchedClassifier = program
            .with_context(|| format!("the object has no program {name}"))?
            .try_into()?;
        if program.fd().is_err() {
            let _blocked = BlockedSignals::new()?;
            program.load().with_context(|| format!("program {name}"))?;
        }
        Ok(program)
    }

    /// Turns on the counting of flow entries, as an agent does that has made the maps. There must
    /// be no entry.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn count_notes(&self) -> Result<()> {
        let words = self.table::<u32, u64>(map::CACHE_EPOCHS)?;
        (0..CACHE_GROUPS).try_for_each(|group| words.put(&group, &GROUP_COUNTED))
    }

    /// Empties every map of translation. No packet may pass at the same time.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_flows(&self) -> Result<()> {
        for flows in [map::FLOWS_V4, map::FLOWS_V6] {
            self.table::<FlowKey, Flow>(flows)?.clear()?;
        }
        for moved in [map::MOVED_V4, map::MOVED_V6] {
            self.table::<PodTuple, Moved>(moved)?.clear()?;
        }
        self.table::<PodTuple, TrackedFlow>(map::INBOUND)?.clear()?;
        self.table::<PodTuple, TrackedFlow>(map::STACK)?.clear()?;
        self.table::<PortBlockKey, PortBlock>(map::PORT_BLOCKS)?
            .clear()?;
        self.table::<u32, Quota>(map::QUOTA)?.clear()?;
        self.table::<ShareKey, Quota>(map::SHARES)?.clear()?;
        let rooms = self.table::<u32, Room>(map::ROOM)?;
        self.forget_credit()?;
        let lend = self.table::<u32, u32>(map::LEND)?;
        (0..SHARED_TABLES).try_for_each(|table| {
            rooms.put(&table, &Room::UNKNOWN)?;
            lend.put(&table, &0)
        })?;
        self.forget_fragments()?;
        self.table::<LinkLocalKey, LinkLocals>(map::LINK_LOCALS)?
            .clear()
    }

    /// Takes the credit for new entries from every CPU.
    fn forget_credit(&self) -> Result<()> {
        let Some(Map::PerCpuArray(data)) = self.ebpf.map(map::CREDIT) else {
            bail!("the object has no credit for each CPU");
        };
        let data = MapData::from_fd(data.fd().as_fd().try_clone_to_owned()?)?;
        let mut credit = PerCpuArray::<_, u64>::try_from(Map::PerCpuArray(data))?;
        let cpus = nr_cpus().map_err(|(file, error)| anyhow!("{file}: {error}"))?;
        (0..SHARED_TABLES).try_for_each(|table| {
            let none = PerCpuValues::try_from(vec![0; cpus])?;
            Ok(credit.set(table, none, 0)?)
        })
    }

    /// Empties every slot of the flow cache. No packet may pass at the same time.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_cache(&self) -> Result<()> {
        let cache = self.table::<u32, [u64; 16]>(map::CACHE)?;
        let mut slots = cache.entries()?.into_iter();
        slots.try_for_each(|(slot, _)| cache.put(&slot, &[0; 16]))
    }

    /// Removes the records of fragmented datagrams. No packet may pass at the same time.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_fragments(&self) -> Result<()> {
        self.table::<DatagramKey, Datagram>(map::FRAGMENTS)?
            .clear()?;
        self.table::<u32, FragmentRing>(map::FRAGMENT_RINGS)?
            .clear()
    }
}
