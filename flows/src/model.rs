//! The maps of translation without a kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail};
use datapath_common::abi::{
    Addr, AddressEntry, EndpointAddress, EniAddresses, EniEntry, Flow, FlowKey, Moved, PodTuple,
    PortBlock, PortBlockKey, ReapFlow, ReapNote, Room, SharedTable, TrackedFlow, TransportAddr,
};
use datapath_common::counter::NatStat;
use datapath_common::masquerade::PoolPolicy;
use datapath_common::ports;
use ipam::Family;

use super::tables::{Capacities, NatCounters, NoteKind, Tables};
use super::tracker::{StackLifetimes, Tracker};
use crate::sweep::resting::Mark;
use crate::sweep::stale::Removed;
use crate::view::refusals::Refused;

/// Contents of the maps.
#[derive(Default)]
pub struct Maps {
    pub(super) now: u64,
    /// Translated flows.
    pub flows: BTreeMap<FlowKey, Flow>,
    /// Places of flows that did not get their first candidate port.
    pub moved: BTreeMap<PodTuple, Moved>,
    /// Notes of flows without an entry of their own.
    pub notes: Notes,
    pub(super) conntrack: Conntrack,
    pub(super) blocks: Vec<(PortBlockKey, PortBlock)>,
    /// Counts of flows by endpoint.
    pub quotas: BTreeMap<u32, u32>,
    /// Published rooms of tables.
    pub(super) rooms: BTreeMap<SharedTable, Room>,
    pub(super) credit: BTreeMap<SharedTable, u32>,
    pub(super) lend: BTreeMap<SharedTable, u32>,
    /// Addresses of endpoints and ENIs.
    pub addresses: BTreeMap<Addr, AddressEntry>,
    pub(super) counted: Counted,
    pub(super) races: Races,
    /// True if the kernel refuses everything.
    pub(super) is_broken: bool,
}

/// Notes by the side from which their flows come.
#[derive(Default)]
pub struct Notes {
    /// Notes of flows from the outside.
    pub inbound: BTreeMap<PodTuple, TrackedFlow>,
    /// Notes of flows of the host's stack.
    pub stack: BTreeMap<PodTuple, TrackedFlow>,
}

impl Notes {
    fn of(&mut self, kind: NoteKind) -> &mut BTreeMap<PodTuple, TrackedFlow> {
        match kind {
            NoteKind::Inbound => &mut self.inbound,
            NoteKind::Stack => &mut self.stack,
        }
    }
}

/// Conntrack.
#[derive(Default)]
pub(super) struct Conntrack {
    pub(super) entries: Vec<PodTuple>,
    /// The marks of its entries.
    pub(super) marks: Vec<u32>,
    /// Addresses of pods to which entries lead, with the number of times that they come back after
    /// a removal.
    pub(super) stale: BTreeMap<IpAddr, u32>,
    /// True if reading it fails.
    pub(super) is_unreadable: bool,
}

impl Conntrack {
    fn readable(&mut self) -> Result<&mut Self> {
        if self.is_unreadable {
            bail!("conntrack cannot be read");
        }
        Ok(self)
    }
}

/// The counters of the programs.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) nat: NatCounters,
    pub(super) refused: Refused,
}

/// Packets that come while a sweep runs.
#[derive(Default)]
pub(super) struct Races {
    /// Flows that were passed to the reaper, and that packets refresh before its check.
    pub(super) busy: Vec<FlowKey>,
    /// Flows that are opened during a scan, too late to be seen: one at each scan, for the pod of
    /// an address.
    pub(super) coming: Vec<(FlowKey, Addr, u32)>,
}

/// The maps, shared by the sweeper and the test.
#[derive(Clone, Default)]
pub struct Model(Arc<Mutex<Maps>>);

pub(super) const HERTZ: u32 = 100;
/// Any time that is not 0, so that there is a before.
pub(super) const START: u64 = 10_000_000;

impl Model {
    /// Empty maps.
    #[must_use]
    pub fn new() -> Self {
        let maps = Maps {
            now: START,
            ..Maps::default()
        };
        Self(Arc::new(Mutex::new(maps)))
    }

    /// The maps, locked.
    pub fn maps(&self) -> MutexGuard<'_, Maps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Conntrack, as the model has it.
    #[must_use]
    pub fn tracker(&self) -> Box<dyn Tracker> {
        Box::new(self.clone())
    }

    fn working(&self) -> Result<MutexGuard<'_, Maps>> {
        let maps = self.maps();
        if maps.is_broken {
            bail!("the kernel is broken");
        }
        Ok(maps)
    }
}

impl Maps {
    /// Puts a flow in as the datapath does, last seen so many seconds ago.
    pub fn open(&mut self, key: FlowKey, pod: Addr, endpoint: u32, idle: u64) {
        let last_seen = self.now - idle * u64::from(HERTZ);
        self.flows.insert(
            key,
            Flow::new(&key, TransportAddr::new(pod, key.port), endpoint, last_seen),
        );
        *self.quotas.entry(endpoint).or_default() += 1;
    }

    /// Puts in an endpoint with this address.
    pub fn add_endpoint(&mut self, pod: Addr, identity: u32) {
        let [a, b, c, d] = identity.to_be_bytes();
        let entry = AddressEntry::endpoint(EndpointAddress {
            eni: 0,
            eni_ifindex: 2,
            pool: PoolPolicy::Masquerade,
            via_stack: false,
            ifindex: identity + 100,
            mtu: 1500,
            pod_mac: [0; 6],
            host_mac: [2, 0, a, b, c, d],
            namespace: None,
        });
        self.addresses.insert(pod, entry);
    }

    fn retire(&mut self, item: &ReapFlow) -> bool {
        let Some(flow) = self.flows.get_mut(&item.key) else {
            return false;
        };
        if self.races.busy.contains(&item.key) {
            flow.last_seen = self.now;
        }
        if item.last_seen != ReapFlow::ALWAYS && item.last_seen != flow.last_seen {
            return false;
        }
        let endpoint = flow.endpoint;
        self.flows.remove(&item.key);
        if let Some(quota) = self.quotas.get_mut(&endpoint) {
            *quota = quota.saturating_sub(1);
        }
        let family = Family::of(item.key.remote.into());
        let removed = self.counted.nat.of(family, NatStat::Removed);
        self.counted.nat.set(family, NatStat::Removed, removed + 1);
        true
    }
}

fn is_of(family: Family, address: Addr) -> bool {
    address.is_v4() == (family == Family::V4)
}

impl Tracker for Model {
    fn lifetimes(&mut self) -> StackLifetimes {
        StackLifetimes::default()
    }

    fn has(&mut self, tuple: &PodTuple) -> Result<bool> {
        Ok(self.working()?.conntrack.entries.contains(tuple))
    }

    fn has_mark(&mut self, Mark { value, mask }: Mark) -> Result<bool> {
        let mut maps = self.working()?;
        let mut marks = maps.conntrack.readable()?.marks.iter();
        Ok(marks.any(|mark| mark & mask == value))
    }

    fn remove_leading_to(&mut self, gone: &BTreeSet<IpAddr>) -> Result<Removed> {
        let mut maps = self.working()?;
        let stale = &mut maps.conntrack.readable()?.stale;
        let mut removed = Removed {
            is_whole: true,
            ..Removed::default()
        };
        for address in gone {
            if let Some(left) = stale.remove(address) {
                let entry = (1, format!("an entry of {address}"));
                removed.leading_to.insert(*address, entry);
                let again = left.checked_sub(1).map(|left| (*address, left));
                stale.extend(again);
            }
        }
        Ok(removed)
    }
}

impl Tables for Model {
    fn now(&self) -> Result<u64> {
        Ok(self.working()?.now)
    }

    fn jiffies_per_second(&self) -> u32 {
        HERTZ
    }

    fn capacities(&self) -> Capacities {
        Capacities {
            flows_v4: 100,
            flows_v6: 100,
            inbound: 100,
            stack: 100,
        }
    }

    fn counters(&self) -> Result<NatCounters> {
        Ok(self.working()?.counted.nat.clone())
    }

    fn refused(&self) -> Result<Refused> {
        Ok(self.working()?.counted.refused)
    }

    fn flows(&self, family: Family, show: &mut dyn FnMut(&FlowKey, &Flow)) -> Result<()> {
        let mut maps = self.working()?;
        let flows = maps.flows.clone();
        if let Some((key, pod, endpoint)) = maps.races.coming.pop() {
            maps.open(key, pod, endpoint, 0);
        }
        drop(maps);
        for (key, flow) in flows.iter().filter(|(key, _)| is_of(family, key.remote)) {
            show(key, flow);
        }
        Ok(())
    }

    fn flow(&self, _family: Family, key: &FlowKey) -> Result<Option<Flow>> {
        Ok(self.working()?.flows.get(key).copied())
    }

    fn notes(&self, kind: NoteKind, show: &mut dyn FnMut(&PodTuple, &TrackedFlow)) -> Result<()> {
        let notes = self.working()?.notes.of(kind).clone();
        for (tuple, note) in &notes {
            show(tuple, note);
        }
        Ok(())
    }

    fn note(&self, kind: NoteKind, tuple: &PodTuple) -> Result<Option<TrackedFlow>> {
        Ok(self.working()?.notes.of(kind).get(tuple).copied())
    }

    fn moved(&self, family: Family, show: &mut dyn FnMut(&PodTuple, &Moved)) -> Result<()> {
        let moved = self.working()?.moved.clone();
        for (tuple, moved) in moved.iter().filter(|(tuple, _)| is_of(family, tuple.pod)) {
            show(tuple, moved);
        }
        Ok(())
    }

    fn moved_to(&self, _family: Family, tuple: &PodTuple) -> Result<Option<Moved>> {
        Ok(self.working()?.moved.get(tuple).copied())
    }

    fn note_moved(&self, _family: Family, tuple: &PodTuple, moved: &Moved) -> Result<()> {
        let mut maps = self.working()?;
        maps.moved.entry(*tuple).or_insert(*moved);
        Ok(())
    }

    fn forget_moved(&self, _family: Family, tuple: &PodTuple) -> Result<()> {
        self.working()?.moved.remove(tuple);
        Ok(())
    }

    fn blocks(&self, show: &mut dyn FnMut(&PortBlockKey, &PortBlock)) -> Result<()> {
        let blocks = self.working()?.blocks.clone();
        for (key, block) in &blocks {
            show(key, block);
        }
        Ok(())
    }

    fn clear_bits(&self, key: &PortBlockKey, bits: &[u64; 8]) -> Result<()> {
        for (of, block) in &mut self.working()?.blocks {
            if of == key {
                let words = block.used.iter_mut().zip(bits);
                words.for_each(|(used, stale)| *used &= !stale);
            }
        }
        Ok(())
    }

    fn remove_block(&self, key: &PortBlockKey) -> Result<()> {
        self.working()?.blocks.retain(|(of, _)| of != key);
        Ok(())
    }

    fn quotas(&self, show: &mut dyn FnMut(u32, u32)) -> Result<()> {
        let quotas = self.working()?.quotas.clone();
        for (endpoint, flows) in quotas {
            show(endpoint, flows);
        }
        Ok(())
    }

    fn quota(&self, key: u32) -> Result<u32> {
        Ok(self.working()?.quotas.get(&key).copied().unwrap_or(0))
    }

    fn correct_quota(&self, endpoint: u32, drift: i64) -> Result<()> {
        let mut maps = self.working()?;
        let quota = maps.quotas.entry(endpoint).or_default();
        *quota = u32::try_from(i64::from(*quota) - drift)?;
        Ok(())
    }

    fn remove_quota(&self, endpoint: u32) -> Result<()> {
        self.working()?.quotas.remove(&endpoint);
        Ok(())
    }

    fn set_room(&self, table: SharedTable, room: &Room) -> Result<()> {
        self.working()?.rooms.insert(table, *room);
        Ok(())
    }

    fn set_credit(&self, table: SharedTable, entries: u32) -> Result<()> {
        self.working()?.credit.insert(table, entries);
        Ok(())
    }

    fn set_lend(&self, table: SharedTable, flows: u32) -> Result<()> {
        self.working()?.lend.insert(table, flows);
        Ok(())
    }

    fn lend(&self, table: SharedTable) -> Result<u32> {
        Ok(self.maps().lend.get(&table).copied().unwrap_or(0))
    }

    fn address(&self, address: Addr) -> Result<Option<AddressEntry>> {
        Ok(self.working()?.addresses.get(&address).copied())
    }

    fn eni(&self, number: u8) -> Result<Option<EniEntry>> {
        let snat = Addr::from_v4_word(u32::from_ne_bytes([10, 0, number, 1]));
        let v4 = EniAddresses::new(Addr::UNSPECIFIED, snat, number);
        let entry = EniEntry::new(2, 1500, v4, EniAddresses::NONE);
        Ok(Some(entry).filter(|_| number < 2))
    }

    fn reap_flows(&self, flows: &[ReapFlow]) -> Result<u64> {
        let mut maps = self.working()?;
        let removed = flows.iter().filter(|item| maps.retire(item)).count();
        Ok(u64::try_from(removed)?)
    }

    fn reap_notes(&self, kind: NoteKind, notes: &[ReapNote]) -> Result<u64> {
        let mut maps = self.working()?;
        let before = maps.notes.of(kind).len();
        for item in notes {
            maps.notes.of(kind).remove(&item.key);
        }
        Ok(u64::try_from(before - maps.notes.of(kind).len())?)
    }
}

/// A block of a flow's destination with these ports set.
#[must_use]
pub fn block(key: &FlowKey, used: &[u16]) -> (PortBlockKey, PortBlock) {
    let of = used.first().copied().map_or(0, ports::block_of);
    let key = PortBlockKey::new(
        key.eni,
        key.protocol,
        TransportAddr::new(key.remote, key.remote_port),
        of,
    );
    let mut block = PortBlock::FREE;
    for port in used {
        let (word, bit) = ports::bit_of(*port);
        block.used[word as usize] |= bit;
    }
    (key, block)
}
