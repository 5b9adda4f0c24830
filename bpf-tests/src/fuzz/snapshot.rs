//! Contents of the maps, in the model's terms.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;

use anyhow::Result;
use datapath_common::abi::{
    Datagram, DatagramKey, Flow, FlowKey, FragmentRing, LinkLocalKey, LinkLocals, Moved, PodTuple,
    PortBlock, PortBlockKey, Quota, TrackedFlow, inbound_quota, map,
};
use testkit::testrun::Programs;
use testkit::testrun::tables::Table;

use super::groups::Groups;
use super::preload::{LONG_AGO, datagram_key};
use crate::model::parse::TCP;
use crate::model::stack::OfStack;
use crate::model::state::{FragmentRecord, Inside, Noted, Outside, State, shown};

/// The maps of translation.
pub(super) struct Tables {
    flows: [Table<FlowKey, Flow>; 2],
    moved: [Table<PodTuple, Moved>; 2],
    blocks: Table<PortBlockKey, PortBlock>,
    pub(super) quota: Table<u32, Quota>,
    pub(super) inbound: Table<PodTuple, TrackedFlow>,
    pub(super) stack: Table<PodTuple, TrackedFlow>,
    pub(super) fragments: Table<DatagramKey, Datagram>,
    fragment_rings: Table<u32, FragmentRing>,
    link_locals: Table<LinkLocalKey, LinkLocals>,
    /// `None` if flow entries are not counted.
    groups: Option<Groups>,
}

impl Tables {
    /// The tables of loaded programs.
    pub(super) fn of(programs: &Programs, is_counted: bool) -> Result<Self> {
        Ok(Self {
            flows: [
                programs.table(map::FLOWS_V4)?,
                programs.table(map::FLOWS_V6)?,
            ],
            moved: [
                programs.table(map::MOVED_V4)?,
                programs.table(map::MOVED_V6)?,
            ],
            blocks: programs.table(map::PORT_BLOCKS)?,
            quota: programs.table(map::QUOTA)?,
            inbound: programs.table(map::INBOUND)?,
            stack: programs.table(map::STACK)?,
            fragments: programs.table(map::FRAGMENTS)?,
            fragment_rings: programs.table(map::FRAGMENT_RINGS)?,
            link_locals: programs.table(map::LINK_LOCALS)?,
            groups: is_counted.then(|| Groups::of(programs)).transpose()?,
        })
    }

    /// The flows of the family of an address.
    pub(super) fn flows_of(&self, address: IpAddr) -> &Table<FlowKey, Flow> {
        &self.flows[usize::from(address.is_ipv6())]
    }

    /// The moved flows of the family of an address.
    pub(super) fn moved_of(&self, address: IpAddr) -> &Table<PodTuple, Moved> {
        &self.moved[usize::from(address.is_ipv6())]
    }

    /// The time at which an existing flow was last seen.
    pub(super) fn last_seen(&self) -> Result<Option<u64>> {
        let flows = self.flows[0].entries()?;
        Ok(flows.first().map(|(_, flow)| flow.last_seen))
    }

    /// The tuple of every entry.
    fn notes(&self) -> Result<Vec<PodTuple>> {
        let mut notes = Vec::new();
        for table in &self.moved {
            notes.extend(table.entries()?.into_iter().map(|(tuple, _)| tuple));
        }
        for table in [&self.inbound, &self.stack] {
            notes.extend(table.entries()?.into_iter().map(|(tuple, _)| tuple));
        }
        Ok(notes)
    }

    /// Counts the preloaded entries.
    pub(super) fn count_notes(&mut self) -> Result<()> {
        let notes = self.notes()?;
        match &mut self.groups {
            Some(groups) => groups.set(&notes),
            None => Ok(()),
        }
    }

    /// Empties all tables.
    pub(super) fn clear(&self) -> Result<()> {
        for family in 0..2 {
            self.flows[family].clear()?;
            self.moved[family].clear()?;
        }
        self.blocks.clear()?;
        self.quota.clear()?;
        self.inbound.clear()?;
        self.stack.clear()?;
        self.fragments.clear()?;
        self.fragment_rings.clear()?;
        self.link_locals.clear()
    }

    /// Compares the tables with the expected state and returns the differences. `begin` is the
    /// beginning of the batch, in jiffies. After a slow batch, flows that have become streams are
    /// no difference.
    pub(super) fn compare(
        &mut self,
        state: &State,
        begin: u64,
        is_slow: bool,
    ) -> Result<Vec<String>> {
        let mut differences = Vec::new();
        // The kernel's clock may lag behind ours.
        let long_ago = begin - LONG_AGO / 2;
        let mut flows = BTreeMap::new();
        for table in &self.flows {
            for (key, flow) in table.entries()? {
                // The cache may serve the second packet of a flow without connections.
                let ignored = if key.protocol == TCP { 0 } else { shown::MORE };
                let outside = Outside {
                    eni: key.eni,
                    protocol: key.protocol,
                    remote: key.remote.into(),
                    remote_port: u16::from_be(key.remote_port),
                    port: u16::from_be(key.port),
                };
                let flow = crate::model::state::Flow {
                    pod: flow.pod.into(),
                    pod_port: u16::from_be(flow.pod_port),
                    endpoint: flow.endpoint,
                    out: flow.progress_out & !ignored,
                    inward: flow.progress_in,
                    idle: flow.last_seen < long_ago,
                    dead: flow.dead != 0,
                    stack: flow.stack != 0,
                };
                flows.insert(outside, flow);
            }
        }
        compare("flow", &flows, &state.flows, &mut differences);
        let ignored = if is_slow { shown::STREAM } else { 0 };
        self.compare_notes(state, long_ago, ignored, &mut differences)?;
        self.compare_rest(state, &mut differences)?;
        let notes = self.notes()?;
        if let Some(groups) = &mut self.groups {
            groups.compare(&notes, &mut differences)?;
        }
        Ok(differences)
    }

    fn compare_notes(
        &self,
        state: &State,
        long_ago: u64,
        ignored: u8,
        differences: &mut Vec<String>,
    ) -> Result<()> {
        let notes = self.inbound.entries()?.into_iter();
        let inbound = notes.map(|(tuple, note)| (inside(&tuple), noted(&note)));
        compare(
            "inbound flow",
            &inbound.collect(),
            &state.inbound,
            differences,
        );
        let looked_at = |mut flow: OfStack| {
            flow.noted.out &= !ignored;
            flow.noted.inward &= !ignored;
            flow
        };
        let stack = self.stack.entries()?.into_iter().map(|(tuple, note)| {
            let flow = OfStack {
                noted: noted(&note),
                eni: note.mark(),
                old: is_before(note.made, long_ago),
                idle: note.last_seen < long_ago,
                dead: note.dead != 0,
            };
            (inside(&tuple), looked_at(flow))
        });
        let wanted = state.stack.iter();
        let wanted = wanted.map(|(inside, flow)| (*inside, looked_at(*flow)));
        compare(
            "flow of the stack",
            &stack.collect(),
            &wanted.collect(),
            differences,
        );
        Ok(())
    }

    fn compare_rest(&self, state: &State, differences: &mut Vec<String>) -> Result<()> {
        let mut fragments = BTreeMap::new();
        for (key, value) in self.fragments.entries()? {
            let error = Outside {
                // The ENI of the flow follows from the datagram's receiver.
                eni: 0,
                protocol: value.protocol,
                remote: value.remote.into(),
                remote_port: u16::from_be(value.source_port),
                port: u16::from_be(value.destination_port),
            };
            let recorded = match (value.reordered, value.protocol) {
                _ if value.is_error != 0 => FragmentRecord::Error(error),
                (0, 0) => FragmentRecord::Portless,
                (0, protocol) => FragmentRecord::Ports(
                    protocol,
                    u16::from_be(value.source_port),
                    u16::from_be(value.destination_port),
                ),
                _ => FragmentRecord::Reordered,
            };
            fragments.insert(format!("{key:?}"), recorded);
        }
        for (datagram, recorded) in &state.datagrams {
            let key = format!("{:?}", datagram_key(datagram));
            let found = fragments.remove(&key);
            if recorded.is_some() && found != *recorded {
                differences.push(format!("{datagram:?}: {found:?}, not {recorded:?}"));
            }
        }
        for key in fragments.keys() {
            differences.push(format!("{key} should not be noted"));
        }
        let quota: BTreeMap<u32, u64> = self
            .quota
            .entries()?
            .into_iter()
            .map(|(endpoint, quota)| (endpoint, u64::from(quota.flows)))
            .filter(|(_, flows)| *flows != 0)
            .collect();
        let wanted: BTreeMap<u32, u64> = state
            .quota
            .iter()
            .map(|(endpoint, flows)| (*endpoint, *flows))
            .chain(state.inbound.values().map(|flow| {
                (
                    inbound_quota(flow.endpoint),
                    state.inbound_of(flow.endpoint),
                )
            }))
            .filter(|(_, flows)| *flows != 0)
            .collect();
        compare("quota of", &quota, &wanted, differences);
        Ok(())
    }
}

/// A tuple, in the model's terms.
fn inside(tuple: &PodTuple) -> Inside {
    Inside {
        protocol: tuple.protocol,
        pod: tuple.pod.into(),
        pod_port: u16::from_be(tuple.pod_port),
        remote: tuple.remote.into(),
        remote_port: u16::from_be(tuple.remote_port),
    }
}

/// Bits of an entry for packets in both directions.
fn noted(note: &TrackedFlow) -> Noted {
    Noted {
        endpoint: note.endpoint,
        out: note.progress_out,
        inward: note.progress_in,
    }
}

/// True if the low word of a time is before another time.
fn is_before(low: u32, time: u64) -> bool {
    let [a, b, c, d, ..] = time.to_le_bytes();
    low.wrapping_sub(u32::from_le_bytes([a, b, c, d])) > u32::MAX / 2
}

/// Reports entries that differ.
fn compare<K: Ord + Debug, V: PartialEq + Debug>(
    what: &str,
    found: &BTreeMap<K, V>,
    wanted: &BTreeMap<K, V>,
    differences: &mut Vec<String>,
) {
    for (key, value) in found {
        match wanted.get(key) {
            Some(wanted) if wanted == value => {}
            Some(wanted) => {
                differences.push(format!("{what} {key:?}: {value:?}, not {wanted:?}"));
            }
            None => differences.push(format!("{what} {key:?} should not be: {value:?}")),
        }
    }
    for (key, value) in wanted {
        if !found.contains_key(key) {
            differences.push(format!("{what} {key:?} is missing: {value:?}"));
        }
    }
}
