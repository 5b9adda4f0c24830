//! The maps of translation and the reaper, as the sweeper uses them: by descriptors of its own.

use anyhow::{Context, Result, bail};
use aya::Ebpf;
use aya::maps::{Map, MapData};
use aya_obj::generated::{BPF_EXIST, BPF_F_LOCK, BPF_NOEXIST};
use datapath_common::abi::{
    Addr, AddressEntry, EniEntry, Flow, FlowKey, Moved, NatControl, PodTuple, PortBlock,
    PortBlockKey, Quota, REAP_BATCH, ReapFlow, ReapHeader, ReapKind, ReapNote, Room, SharedTable,
    TrackedFlow, map,
};
use flows::{Capacities, CompatLookups, LookupControl, NatCounters, NoteKind, Refused, Tables};
use ipam::Family;
use zerocopy::{Immutable, IntoBytes};

use std::os::fd::{AsFd, OwnedFd};

use crate::bpf::flow_maps::cache::Cache;
use crate::bpf::flow_maps::counters::Counters;
use crate::bpf::flow_maps::credit::Credit;
use crate::bpf::flow_maps::flow_groups::Groups;
use crate::bpf::flow_maps::stack_flows::{SharedStack, Stack};
use crate::bpf::jiffies::Jiffies;
use crate::bpf::sys::run::test_run;
use crate::bpf::sys::table::{Plain, Table};

/// One table for each family.
struct PerFamily<T> {
    v4: T,
    v6: T,
}

impl<T> PerFamily<T> {
    fn of(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

/// The maps of translation, and the reaper.
pub struct NatTables {
    flows: PerFamily<Table<FlowKey, Flow>>,
    moved: PerFamily<Table<PodTuple, Moved>>,
    inbound: Table<PodTuple, TrackedFlow>,
    stack: SharedStack,
    groups: Groups,
    limits: LimitTables,
    addresses: Table<Addr, AddressEntry>,
    enis: Table<u32, EniEntry>,
    counters: Counters,
    capacities: Capacities,
    clock: Clock,
}

/// The tables by which the programs refuse flows.
struct LimitTables {
    blocks: Table<PortBlockKey, PortBlock>,
    quotas: Table<u32, Quota>,
    rooms: Table<u32, Room>,
    credit: Credit,
    lend: Table<u32, u32>,
}

/// The time by which the programs date flows.
struct Clock {
    jiffies: Jiffies,
    per_second: u32,
}

/// The slot in which user space says whether there may be translated flows that policy exempts.
pub struct NatSwitch {
    control: Table<u32, NatControl>,
    cache: Cache,
}

/// A map of the object, whatever its type.
fn data<'a>(ebpf: &'a Ebpf, name: &str) -> Result<&'a MapData> {
    match ebpf.map(name) {
        Some(Map::HashMap(data) | Map::Array(data) | Map::LpmTrie(data)) => Ok(data),
        Some(_other) => bail!("the map {name} has another type"),
        None => bail!("the eBPF object has no map {name}"),
    }
}

/// A map of an object, if its keys and values have the size of these types.
pub(in crate::bpf) fn table<K: Plain, V: Plain>(ebpf: &Ebpf, name: &str) -> Result<Table<K, V>> {
    let data = data(ebpf, name)?;
    let info = data
        .info()
        .with_context(|| format!("cannot examine the map {name}"))?;
    let sizes = [info.key_size(), info.value_size()].map(usize::try_from);
    if sizes != [Ok(size_of::<K>()), Ok(size_of::<V>())] {
        bail!("the map {name} has keys or values of another size");
    }
    // SAFETY: the sizes are those of the types.
    let table = unsafe { Table::new(data.fd().as_fd()) };
    table.with_context(|| format!("cannot hold the map {name}"))
}

/// The room of a map of an object.
pub(in crate::bpf) fn capacity(ebpf: &Ebpf, name: &str) -> Result<u32> {
    let info = data(ebpf, name)?.info();
    Ok(info
        .with_context(|| format!("cannot examine the map {name}"))?
        .max_entries())
}

impl NatSwitch {
    /// The switch of an object.
    ///
    /// # Errors
    /// When its map is missing or cannot be examined.
    pub fn new(ebpf: &Ebpf) -> Result<Self> {
        Ok(Self {
            control: table(ebpf, map::NAT_CONTROL)?,
            cache: Cache::new(ebpf)?,
        })
    }
}

impl LookupControl for NatSwitch {
    fn set(&self, lookups: CompatLookups) -> Result<()> {
        let control = NatControl {
            may_be_exempt: lookups.exempt.into(),
            may_be_elsewhere: lookups.elsewhere.into(),
        };
        self.control
            .put(&0, &control, 0)
            .context("cannot write the map NAT_CONTROL")?;
        self.cache.invalidate()
    }
}

impl NatTables {
    /// The maps of an object whose reaper is loaded.
    ///
    /// # Errors
    /// When a map is missing or cannot be examined.
    pub fn new(ebpf: &Ebpf, reaper: OwnedFd, jiffies_per_second: u32) -> Result<Self> {
        let stack = SharedStack::new(Stack::new(ebpf, reaper)?);
        Self::with(ebpf, stack, jiffies_per_second)
    }

    /// The tables, with the map of notes and the reaper shared.
    pub(in crate::bpf) fn with(
        ebpf: &Ebpf,
        stack: SharedStack,
        jiffies_per_second: u32,
    ) -> Result<Self> {
        Ok(Self {
            flows: PerFamily {
                v4: table(ebpf, map::FLOWS_V4)?,
                v6: table(ebpf, map::FLOWS_V6)?,
            },
            moved: PerFamily {
                v4: table(ebpf, map::MOVED_V4)?,
                v6: table(ebpf, map::MOVED_V6)?,
            },
            inbound: table(ebpf, map::INBOUND)?,
            limits: LimitTables {
                blocks: table(ebpf, map::PORT_BLOCKS)?,
                quotas: table(ebpf, map::QUOTA)?,
                rooms: table(ebpf, map::ROOM)?,
                credit: Credit::new(ebpf)?,
                lend: table(ebpf, map::LEND)?,
            },
            addresses: table(ebpf, map::ADDRESSES)?,
            enis: table(ebpf, map::ENIS)?,
            groups: Groups::new(ebpf)?,
            counters: Counters::new(ebpf)?,
            capacities: Capacities {
                flows_v4: capacity(ebpf, map::FLOWS_V4)?,
                flows_v6: capacity(ebpf, map::FLOWS_V6)?,
                inbound: capacity(ebpf, map::INBOUND)?,
                stack: stack.get().capacity,
            },
            stack,
            clock: Clock {
                jiffies: Jiffies::open().context("cannot load the program that reads jiffies")?,
                per_second: jiffies_per_second,
            },
        })
    }

    fn reap<T: IntoBytes + Immutable>(&self, kind: ReapKind, items: &[T]) -> Result<u64> {
        let mut removed = 0;
        for items in items.chunks(REAP_BATCH) {
            let count = u8::try_from(items.len()).context("a request of the reaper is too long")?;
            let mut request = ReapHeader::new(kind, count).as_bytes().to_vec();
            request.extend_from_slice(items.as_bytes());
            let result = test_run(self.stack.get().reaper.as_fd(), &request);
            removed += u64::from(result.context("cannot run the reaper")?);
        }
        Ok(removed)
    }
}

fn reading(name: &'static str) -> impl Fn() -> String {
    move || format!("cannot read the map {name}")
}

fn writing(name: &'static str) -> impl Fn() -> String {
    move || format!("cannot write the map {name}")
}

fn flows_name(family: Family) -> &'static str {
    match family {
        Family::V4 => map::FLOWS_V4,
        Family::V6 => map::FLOWS_V6,
    }
}

fn moved_name(family: Family) -> &'static str {
    match family {
        Family::V4 => map::MOVED_V4,
        Family::V6 => map::MOVED_V6,
    }
}

impl Tables for NatTables {
    fn now(&self) -> Result<u64> {
        let now = self.clock.jiffies.now();
        now.context("cannot read the time in jiffies")
    }

    fn jiffies_per_second(&self) -> u32 {
        self.clock.per_second
    }

    fn capacities(&self) -> Capacities {
        Capacities {
            stack: self.stack.get().capacity,
            ..self.capacities
        }
    }

    fn counters(&self) -> Result<NatCounters> {
        self.counters.nat()
    }

    fn refused(&self) -> Result<Refused> {
        self.counters.refused()
    }

    fn flows(&self, family: Family, show: &mut dyn FnMut(&FlowKey, &Flow)) -> Result<()> {
        let flows = self.flows.of(family).each(show);
        flows.with_context(reading(flows_name(family)))
    }

    fn flow(&self, family: Family, key: &FlowKey) -> Result<Option<Flow>> {
        let flow = self.flows.of(family).get(key, 0);
        flow.with_context(reading(flows_name(family)))
    }

    fn notes(&self, kind: NoteKind, show: &mut dyn FnMut(&PodTuple, &TrackedFlow)) -> Result<()> {
        match kind {
            NoteKind::Inbound => self.inbound.each(show).with_context(reading(map::INBOUND)),
            NoteKind::Stack => {
                let stack = self.stack.get();
                stack.table.each(show).with_context(reading(map::STACK))
            }
        }
    }

    fn note(&self, kind: NoteKind, tuple: &PodTuple) -> Result<Option<TrackedFlow>> {
        match kind {
            NoteKind::Inbound => {
                let note = self.inbound.get(tuple, 0);
                note.with_context(reading(map::INBOUND))
            }
            NoteKind::Stack => {
                let note = self.stack.get().table.get(tuple, 0);
                note.with_context(reading(map::STACK))
            }
        }
    }

    fn moved(&self, family: Family, show: &mut dyn FnMut(&PodTuple, &Moved)) -> Result<()> {
        let moved = self.moved.of(family).each(show);
        moved.with_context(reading(moved_name(family)))
    }

    fn moved_to(&self, family: Family, tuple: &PodTuple) -> Result<Option<Moved>> {
        let moved = self.moved.of(family).get(tuple, 0);
        moved.with_context(reading(moved_name(family)))
    }

    fn note_moved(&self, family: Family, tuple: &PodTuple, moved: &Moved) -> Result<()> {
        let table = self.moved.of(family);
        let there = table.get(tuple, 0);
        if there.with_context(reading(moved_name(family)))?.is_some() {
            return Ok(());
        }
        self.groups.give_up(tuple)?;
        let noted = table.put(tuple, moved, BPF_NOEXIST.into());
        match noted {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other.with_context(writing(moved_name(family))),
        }
    }

    fn forget_moved(&self, family: Family, tuple: &PodTuple) -> Result<()> {
        let removed = self.moved.of(family).delete(tuple);
        removed.with_context(writing(moved_name(family)))
    }

    fn blocks(&self, show: &mut dyn FnMut(&PortBlockKey, &PortBlock)) -> Result<()> {
        self.limits
            .blocks
            .each(show)
            .with_context(reading(map::PORT_BLOCKS))
    }

    fn clear_bits(&self, key: &PortBlockKey, bits: &[u64; 8]) -> Result<()> {
        let (lock, exist) = (u64::from(BPF_F_LOCK), u64::from(BPF_EXIST));
        let block = self.limits.blocks.get(key, lock);
        let Some(mut block) = block.with_context(reading(map::PORT_BLOCKS))? else {
            return Ok(());
        };
        for (used, stale) in block.used.iter_mut().zip(bits) {
            *used &= !stale;
        }
        match self.limits.blocks.put(key, &block, lock | exist) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.with_context(writing(map::PORT_BLOCKS)),
        }
    }

    fn remove_block(&self, key: &PortBlockKey) -> Result<()> {
        self.limits
            .blocks
            .delete(key)
            .with_context(writing(map::PORT_BLOCKS))
    }

    fn quotas(&self, show: &mut dyn FnMut(u32, u32)) -> Result<()> {
        self.limits
            .quotas
            .each(|endpoint, quota| show(*endpoint, quota.flows))
            .with_context(reading(map::QUOTA))
    }

    fn quota(&self, key: u32) -> Result<u32> {
        let quota = self
            .limits
            .quotas
            .get(&key, 0)
            .with_context(reading(map::QUOTA))?;
        Ok(quota.map_or(0, |quota| quota.flows))
    }

    fn correct_quota(&self, endpoint: u32, drift: i64) -> Result<()> {
        let lock = u64::from(BPF_F_LOCK);
        let quota = self.limits.quotas.get(&endpoint, lock);
        let quota = quota.with_context(reading(map::QUOTA))?;
        let is_there = quota.is_some();
        let mut quota = quota.unwrap_or(Quota::NONE);
        let right = i64::from(quota.flows).saturating_sub(drift).max(0);
        quota.flows = u32::try_from(right).unwrap_or(u32::MAX);
        // A lock can be taken only where there is one already.
        let flags = if is_there {
            lock | u64::from(BPF_EXIST)
        } else {
            u64::from(BPF_NOEXIST)
        };
        match self.limits.quotas.put(&endpoint, &quota, flags) {
            // The datapath or a clean-up was faster; the next sweep sees to it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EEXIST)) => {
                Ok(())
            }
            other => other.with_context(writing(map::QUOTA)),
        }
    }

    fn remove_quota(&self, endpoint: u32) -> Result<()> {
        self.limits
            .quotas
            .delete(&endpoint)
            .with_context(writing(map::QUOTA))
    }

    fn set_room(&self, table: SharedTable, room: &Room) -> Result<()> {
        let written = self
            .limits
            .rooms
            .put(&(table as u32), room, BPF_F_LOCK.into());
        written.with_context(writing(map::ROOM))
    }

    fn set_credit(&self, table: SharedTable, entries: u32) -> Result<()> {
        self.limits.credit.set(table, entries)
    }

    fn set_lend(&self, table: SharedTable, flows: u32) -> Result<()> {
        let written = self.limits.lend.put(&(table as u32), &flows, 0);
        written.with_context(writing(map::LEND))
    }

    fn lend(&self, table: SharedTable) -> Result<u32> {
        let lend = self.limits.lend.get(&(table as u32), 0);
        Ok(lend.with_context(reading(map::LEND))?.unwrap_or(0))
    }

    fn address(&self, address: Addr) -> Result<Option<AddressEntry>> {
        self.addresses
            .get(&address, 0)
            .with_context(reading(map::ADDRESSES))
    }

    fn eni(&self, number: u8) -> Result<Option<EniEntry>> {
        let entry = self.enis.get(&u32::from(number), 0);
        let entry = entry.with_context(reading(map::ENIS))?;
        Ok(entry.filter(|entry| *entry != EniEntry::ABSENT))
    }

    fn reap_flows(&self, flows: &[ReapFlow]) -> Result<u64> {
        self.reap(ReapKind::Flows, flows)
    }

    fn reap_notes(&self, kind: NoteKind, notes: &[ReapNote]) -> Result<u64> {
        let kind = match kind {
            NoteKind::Inbound => ReapKind::Inbound,
            NoteKind::Stack => ReapKind::Stack,
        };
        self.reap(kind, notes)
    }
}
