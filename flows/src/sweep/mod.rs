//! One sweep of the state of translation, and its consequences.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use api::ids::EniNumber;
use api::types::FlowKind;
use datapath_common::abi::{Addr, AddressEntry, PodTuple, ReapFlow, ReapNote, inbound_quota};
use ipam::Family;

use self::blocks::Blocks;
use self::expiry::{Expiry, Short};
use self::moved::Moves;
use self::outcome::Sweep;
use self::pods::Pods;
use self::resting::Resting;
use super::census::Used;
use super::lifetimes::{Lifetimes, flow_phase, note_phase};
use super::tables::{NoteKind, Tables};
use super::tracker::{StackLifetimes, Tracker};
use crate::room::crowd::{Crowd, Crowded};
use crate::room::greedy::Greedy;
use crate::room::pressed::Pressed;
use crate::room::quota::{Limits, QuotaTable, Quotas};
use crate::room::rooms::Rooms;
use crate::room::shortages::Shortages;
use crate::thread::pace::{HALF, PRESSED};

/// Current policy, for flows that were opened under an earlier one.
pub trait FlowPolicy: Send + Sync {
    /// True if a new flow of the pod to the remote would keep its source.
    fn is_exempt(&self, pod: IpAddr, remote: IpAddr) -> bool;

    /// Number of the ENI at which the programs first look for a flow of the pod.
    ///
    /// `owner` is the ENI that has the pod's address.
    fn exit(&self, pod: IpAddr, remote: IpAddr, owner: u8) -> u8;

    /// True if flows of some pods are translated towards destinations where those of other pods
    /// keep their source; the programs then always have to look.
    fn hides_pods(&self) -> bool {
        false
    }
}

/// State of the node that a sweep needs.
#[derive(Clone, Default)]
pub struct SweepInput {
    /// The addresses of the endpoints that are to exist; unknown before the first pass.
    pub endpoints: Option<Arc<BTreeSet<IpAddr>>>,
    /// Policy, if flows are to be compared with it.
    pub policy: Option<Arc<dyn FlowPolicy>>,
    /// Numbers of ENIs to look for in conntrack.
    pub resting: Resting,
}

impl SweepInput {
    /// The identities of the endpoints that can send; unknown before the first pass. One that the
    /// datapath does not know cannot.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn identities(&self, tables: &impl Tables) -> Result<Option<BTreeSet<u32>>> {
        let Some(endpoints) = self.endpoints.as_deref() else {
            return Ok(None);
        };
        let mut identities = BTreeSet::new();
        for address in endpoints {
            let entry = tables.address(Addr::from(*address))?;
            identities.extend(
                entry
                    .filter(AddressEntry::is_endpoint)
                    .map(|entry| entry.identity()),
            );
        }
        Ok(Some(identities))
    }
}

/// Sweeps, and what it keeps from one sweep to the next.
pub struct Sweeper<T> {
    /// The maps.
    pub tables: T,
    /// Timeouts of idle flows.
    pub lifetimes: Lifetimes,
    /// Limits on the number of flows.
    pub limits: Limits,
    /// Access to conntrack.
    pub tracker: Box<dyn Tracker>,
    /// Timeouts of notes of the host's stack, as of the last sweep.
    stack: StackLifetimes,
    quotas: Quotas,
    moves: Moves,
    /// Destinations that were short of ports at the last sweep.
    crowded: Crowded,
    /// Endpoints that had more than a fair share of a table at the last sweep.
    greedy: Greedy,
    rooms: Rooms,
}

impl<T: Tables> Sweeper<T> {
    /// A sweeper of these maps.
    pub fn new(
        tables: T,
        lifetimes: Lifetimes,
        limits: Limits,
        mut tracker: Box<dyn Tracker>,
    ) -> Self {
        Self {
            tables,
            lifetimes,
            limits,
            stack: tracker.lifetimes(),
            tracker,
            quotas: Quotas::default(),
            moves: Moves::default(),
            crowded: Crowded::default(),
            greedy: Greedy::default(),
            rooms: Rooms::default(),
        }
    }

    /// The expiry as of this moment.
    ///
    /// # Errors
    /// When the time cannot be read.
    pub fn expiry(&self) -> Result<Expiry<'_>> {
        Ok(Expiry {
            lifetimes: &self.lifetimes,
            stack: &self.stack,
            now: self.tables.now()?,
            jiffies_per_second: self.tables.jiffies_per_second(),
            short: Short::default(),
        })
    }

    /// Lets the programs know which tables are crowded, with so many entries in use.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn publish_rooms(&mut self, used: &Used) -> Result<()> {
        self.rooms.publish(&self.tables, used)
    }

    /// Sweeps once.
    ///
    /// # Errors
    /// When the kernel refuses something; what was done stays done.
    pub fn sweep(&mut self, input: &SweepInput, pressed: impl Into<Pressed>) -> Result<Sweep> {
        let start = Instant::now();
        let tables = pressed.into();
        let mut sweep = Sweep {
            endpoints: input.endpoints.clone(),
            ..Sweep::default()
        };
        self.stack = self.tracker.lifetimes();
        let mut blocks = Blocks::read(&self.tables)?;
        let written = QuotaTable::read(&self.tables)?;
        let short = self.shortages(tables, &written);
        sweep.is_pressed = tables.is_any() || !short.quotas.is_empty();
        let mut crowd = Crowd::default();
        let mut endpoints: [HashMap<u32, u32>; 2] = Default::default();
        let mut flows = Vec::new();
        for (family, endpoints) in Family::ALL.into_iter().zip(&mut endpoints) {
            let mut seen = Seen {
                sweep: &mut sweep,
                blocks: &mut blocks,
                crowd: &mut crowd,
                endpoints,
            };
            flows.push(self.flows(family, input, &short, &mut seen)?);
        }
        self.greedy = Greedy::of(&endpoints);
        let mut counts = sum(endpoints);
        let mut notes = Vec::new();
        for kind in [NoteKind::Inbound, NoteKind::Stack] {
            let removals = self.notes(kind, input, &short, (&mut sweep, &mut counts))?;
            notes.push((kind, removals));
        }
        self.crowded = crowd.crowded(self.limits.ports);
        sweep.quotas.corrected = self.quotas.settle(&self.tables, &written, &counts)?;
        self.remove(Over { flows, notes }, &mut sweep)?;
        sweep.ask_marks(&input.resting, self.tracker.as_mut());
        blocks.clean(&self.tables)?;
        let written = QuotaTable::read(&self.tables)?;
        sweep.quotas.fullest = written.fullest(&self.limits);
        sweep.quotas.top = written.top();
        sweep.is_urgent = self.crowded.is_any();
        sweep.is_urgent |= self.quotas.clean(&self.tables, &written, input)?;
        for family in Family::ALL {
            sweep.is_urgent |= self.moves.clean(&self.tables, family)?;
        }
        self.publish_rooms(&Used::of(&sweep.census))?;
        sweep.took = start.elapsed();
        Ok(sweep)
    }

    /// Takes what the last sweep found short, and adds what is short now.
    fn shortages(&mut self, tables: Pressed, written: &QuotaTable) -> Shortages {
        Shortages {
            tables,
            quotas: written.above(&self.limits, PRESSED),
            halves: written.above(&self.limits, HALF),
            crowded: mem::take(&mut self.crowded),
            greedy: mem::take(&mut self.greedy),
        }
    }

    /// Scans the translated flows of a family, and counts them for each endpoint.
    fn flows(
        &self,
        family: Family,
        input: &SweepInput,
        short: &Shortages,
        seen: &mut Seen<'_>,
    ) -> Result<Removals<ReapFlow>> {
        let Seen {
            sweep,
            blocks,
            crowd,
            endpoints,
        } = seen;
        let expiry = self.expiry()?;
        let mut pods = Pods::new(&self.tables, input);
        let mut removals = Removals::default();
        self.tables.flows(family, &mut |key, flow| {
            *endpoints.entry(flow.endpoint).or_default() += 1;
            sweep.enis.insert(EniNumber(key.eni));
            let is_lost = pods.has_lost(flow.pod, flow.endpoint);
            if is_lost {
                sweep.lost.insert(flow.pod.into());
            } else {
                // A packet may come yet for one that is over.
                sweep.outdated.count(input, &mut pods, key, flow);
            }
            let expiry = Expiry {
                short: short.of_flow(family, key, flow),
                ..expiry
            };
            if expiry.is_over(key, flow) {
                let item = ReapFlow {
                    key: *key,
                    last_seen: flow.last_seen,
                };
                let Some(tuple) = expiry.asked_of_flow(key, flow) else {
                    removals.expired.push(item);
                    return;
                };
                // It stays in the census until conntrack has been read.
                removals.idle.push((tuple, item));
            }
            if is_lost {
                let (key, last_seen) = (*key, ReapFlow::ALWAYS);
                removals.orphaned.push(ReapFlow { key, last_seen });
                return;
            }
            let kind = FlowKind::of(flow.endpoint);
            sweep.census.count(family, kind, flow_phase(key, flow));
            if blocks.see(key) {
                crowd.see(key, flow.endpoint);
            }
        })?;
        pods.finish()?;
        Ok(removals)
    }

    /// Scans the notes of a kind.
    fn notes(
        &self,
        kind: NoteKind,
        input: &SweepInput,
        short: &Shortages,
        (sweep, counts): (&mut Sweep, &mut HashMap<u32, u32>),
    ) -> Result<Removals<ReapNote>> {
        let expiry = self.expiry()?;
        let mut pods = Pods::new(&self.tables, input);
        let mut removals = Removals::default();
        self.tables.notes(kind, &mut |tuple, note| {
            sweep.enis.insert(EniNumber(note.eni));
            if kind == NoteKind::Inbound {
                *counts.entry(inbound_quota(note.endpoint)).or_default() += 1;
            }
            let (key, last_seen) = (*tuple, note.last_seen);
            let item = || ReapNote { key, last_seen };
            let is_lost = pods.has_lost(tuple.pod, note.endpoint);
            if is_lost {
                sweep.lost.insert(tuple.pod.into());
            }
            let expiry = Expiry {
                short: short.of_note(kind, note),
                ..expiry
            };
            if expiry.is_note_over(kind, tuple, note) {
                if kind == NoteKind::Inbound || !expiry.is_to_be_asked(tuple, note) {
                    removals.expired.push(item());
                    return;
                }
                removals.idle.push((key, item()));
            }
            if is_lost {
                // The next pod with the address may take it over before it goes.
                removals.orphaned.push(item());
            } else {
                let family = Family::of(tuple.pod.into());
                let phase = note_phase(kind, tuple, note);
                sweep.census.count(family, kind.flow_kind(), phase);
            }
        })?;
        pods.finish()?;
        Ok(removals)
    }

    /// Makes the reaper remove what is over.
    fn remove(&mut self, over: Over, sweep: &mut Sweep) -> Result<()> {
        for removals in over.flows {
            let removals = self.ask(removals, sweep);
            sweep.reaped.idle += self.tables.reap_flows(&removals.expired)?;
            sweep.reaped.gone += self.tables.reap_flows(&removals.orphaned)?;
        }
        for (kind, removals) in over.notes {
            let removals = self.ask(removals, sweep);
            sweep.reaped.idle += self.tables.reap_notes(kind, &removals.expired)?;
            sweep.reaped.gone += self.tables.reap_notes(kind, &removals.orphaned)?;
        }
        Ok(())
    }

    /// Adds the flows that are not in conntrack any more to those that are over. Flows stay where
    /// conntrack cannot be read.
    fn ask<I>(&mut self, mut removals: Removals<I>, sweep: &mut Sweep) -> Removals<I> {
        for (tuple, item) in removals.idle.drain(..) {
            match self.tracker.has(&tuple) {
                Ok(true) => {}
                Ok(false) => removals.expired.push(item),
                Err(error) => {
                    sweep.error.get_or_insert(format!("{error:#}"));
                }
            }
        }
        removals
    }
}

/// Results of a scan of the translated flows.
struct Seen<'a> {
    sweep: &'a mut Sweep,
    blocks: &'a mut Blocks,
    crowd: &'a mut Crowd,
    /// Flows of each endpoint.
    endpoints: &'a mut HashMap<u32, u32>,
}

/// Entries to remove.
struct Over {
    flows: Vec<Removals<ReapFlow>>,
    notes: Vec<(NoteKind, Removals<ReapNote>)>,
}

/// Flows of each endpoint in both tables.
fn sum(tables: [HashMap<u32, u32>; 2]) -> HashMap<u32, u32> {
    let mut sum = HashMap::new();
    for (endpoint, flows) in tables.into_iter().flatten() {
        *sum.entry(endpoint).or_default() += flows;
    }
    sum
}

/// Entries to remove.
struct Removals<I> {
    /// Idle for too long.
    expired: Vec<I>,
    /// Of endpoints that are gone.
    orphaned: Vec<I>,
    /// Idle for too long, unless conntrack has an entry.
    idle: Vec<(PodTuple, I)>,
}

impl<I> Default for Removals<I> {
    fn default() -> Self {
        Self {
            expired: Vec::new(),
            orphaned: Vec::new(),
            idle: Vec::new(),
        }
    }
}

pub(super) mod blocks;
pub(super) mod expiry;
pub(super) mod moved;
pub(super) mod outcome;
pub(super) mod pods;
pub(super) mod resting;
pub(super) mod stale;
#[cfg(test)]
mod tests;
