//! Tables that the sweeper reads and writes, so that it can be tested without a kernel.

use anyhow::Result;
use api::types::FlowKind;
use datapath_common::abi::{
    Addr, AddressEntry, EniEntry, Flow, FlowKey, Moved, PodTuple, PortBlock, PortBlockKey,
    ReapFlow, ReapNote, Room, SharedTable, TrackedFlow,
};
use datapath_common::counter::NatStat;
use ipam::Family;

use crate::view::refusals::Refused;

/// Room of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Translated IPv4 flows.
    pub flows_v4: u32,
    /// Translated IPv6 flows.
    pub flows_v6: u32,
    /// Flows from the outside.
    pub inbound: u32,
    /// Flows of the host's stack.
    pub stack: u32,
}

impl Capacities {
    /// Of a family's translated flows.
    #[must_use]
    pub fn flows(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.flows_v4,
            Family::V6 => self.flows_v6,
        }
    }
}

/// Kind of a note's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// Flows opened from the outside.
    Inbound,
    /// Those that take the host's stack both ways.
    Stack,
}

impl NoteKind {
    /// The kind of flow that has a note of this kind.
    #[must_use]
    pub fn flow_kind(self) -> FlowKind {
        match self {
            Self::Inbound => FlowKind::Inbound,
            Self::Stack => FlowKind::Stack,
        }
    }
}

/// Counters of translation since the map was made, summed over the CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatCounters {
    v4: [u64; NatStat::ALL.len()],
    v6: [u64; NatStat::ALL.len()],
}

impl NatCounters {
    /// Of one family.
    #[must_use]
    pub fn of(&self, family: Family, stat: NatStat) -> u64 {
        let family = match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        family.get(stat as usize).copied().unwrap_or(0)
    }

    /// Of both families.
    #[must_use]
    pub fn sum(&self, stat: NatStat) -> u64 {
        let of = |family| self.of(family, stat);
        of(Family::V4).wrapping_add(of(Family::V6))
    }

    /// Sets one.
    pub fn set(&mut self, family: Family, stat: NatStat, to: u64) {
        let family = match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        if let Some(slot) = family.get_mut(stat as usize) {
            *slot = to;
        }
    }
}

/// The maps of translation, and the reaper.
pub trait Tables: Send {
    /// The time of the programs, in jiffies.
    ///
    /// # Errors
    /// When the kernel refuses, as for the others here.
    fn now(&self) -> Result<u64>;

    /// Jiffies in a second.
    fn jiffies_per_second(&self) -> u32;

    /// Room of the maps.
    fn capacities(&self) -> Capacities;

    /// Counters of translation.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn counters(&self) -> Result<NatCounters>;

    /// Packets of flows that were refused, of all programs.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn refused(&self) -> Result<Refused>;

    /// Shows every translated flow of a family.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn flows(&self, family: Family, show: &mut dyn FnMut(&FlowKey, &Flow)) -> Result<()>;

    /// One translated flow.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn flow(&self, family: Family, key: &FlowKey) -> Result<Option<Flow>>;

    /// Shows every note of a kind.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn notes(&self, kind: NoteKind, show: &mut dyn FnMut(&PodTuple, &TrackedFlow)) -> Result<()>;

    /// The note of a kind that a tuple has.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn note(&self, kind: NoteKind, tuple: &PodTuple) -> Result<Option<TrackedFlow>>;

    /// Shows where every flow is that did not get its first candidate port.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn moved(&self, family: Family, show: &mut dyn FnMut(&PodTuple, &Moved)) -> Result<()>;

    /// Recorded place of a tuple's flow that did not get its first candidate port.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn moved_to(&self, family: Family, tuple: &PodTuple) -> Result<Option<Moved>>;

    /// Records the place of a flow, unless there is a note of it already.
    ///
    /// # Errors
    /// When the kernel refuses, for want of room too.
    fn note_moved(&self, family: Family, tuple: &PodTuple, moved: &Moved) -> Result<()>;

    /// Forgets where a flow was.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn forget_moved(&self, family: Family, tuple: &PodTuple) -> Result<()>;

    /// Shows every block of ports.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn blocks(&self, show: &mut dyn FnMut(&PortBlockKey, &PortBlock)) -> Result<()>;

    /// Clears bits of a block; other bits keep their current state.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn clear_bits(&self, key: &PortBlockKey, bits: &[u64; 8]) -> Result<()>;

    /// Removes a block.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn remove_block(&self, key: &PortBlockKey) -> Result<()>;

    /// Shows how many flows every endpoint is said to have.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn quotas(&self, show: &mut dyn FnMut(u32, u32)) -> Result<()>;

    /// Recorded number of flows of a key of `QUOTA`.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn quota(&self, key: u32) -> Result<u32>;

    /// Subtracts `drift` from the recorded count of an endpoint.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn correct_quota(&self, endpoint: u32, drift: i64) -> Result<()>;

    /// Removes an endpoint's count.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn remove_quota(&self, endpoint: u32) -> Result<()>;

    /// Publishes the room of a table to the programs.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_room(&self, table: SharedTable, room: &Room) -> Result<()>;

    /// Publishes how many entries may be added to a table before each is counted. The CPUs share
    /// them.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_credit(&self, table: SharedTable, entries: u32) -> Result<()>;

    /// Publishes how many flows of a table an endpoint may have beyond its quota.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_lend(&self, table: SharedTable, flows: u32) -> Result<()>;

    /// Flows of a table that an endpoint may have beyond its quota, as the programs know it.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn lend(&self, table: SharedTable) -> Result<u32>;

    /// Entry of an address of this node in the datapath.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn address(&self, address: Addr) -> Result<Option<AddressEntry>>;

    /// Entry of an ENI in the datapath.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn eni(&self, number: u8) -> Result<Option<EniEntry>>;

    /// Passes translated flows to the reaper; returns the number that it removed.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn reap_flows(&self, flows: &[ReapFlow]) -> Result<u64>;

    /// Passes notes of a kind to the reaper; returns the number that it removed.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn reap_notes(&self, kind: NoteKind, notes: &[ReapNote]) -> Result<u64>;
}
