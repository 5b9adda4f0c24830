//! Works in flight, and those to hand out.

use std::collections::BTreeMap;
use std::time::Duration;

use cloud::call::budget::Entry;
use cloud::node::Step;
use ipam::Time;
use serde_json::Value;

use super::{Key, advertise::Numbers};
use crate::reads::Reading;
use crate::work::{Event, Part, Task, Work, WorkId};

/// A work without an answer counts as lost after so long, so that no node waits for ever.
pub(super) const LOST: Duration = Duration::from_secs(30);

/// A work in flight.
#[derive(Debug)]
pub(super) enum Pending {
    Call { entry: Entry<Key>, step: Step },
    Read(Box<Reading>),
    Patch(Patch),
    List,
    Pool { name: String },
    Advertise { name: String, numbers: Numbers },
    Delete { name: String },
}

impl Pending {
    pub(super) fn is_call(&self) -> bool {
        matches!(self, Self::Call { .. })
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self, Self::List)
    }

    /// True for a write of the API server.
    pub(super) fn is_write(&self) -> bool {
        match self {
            Self::Patch(_) | Self::Pool { .. } | Self::Advertise { .. } | Self::Delete { .. } => {
                true
            }
            Self::Call { .. } | Self::Read(_) | Self::List => false,
        }
    }
}

/// A merge patch of an object's part.
#[derive(Debug)]
pub(super) struct Patch {
    pub(super) name: String,
    pub(super) part: Part,
    pub(super) body: Value,
}

/// All works.
#[derive(Debug, Default)]
pub(super) struct Works {
    pending: BTreeMap<WorkId, (Time, Pending)>,
    next_id: WorkId,
    out: Vec<Work>,
}

impl Works {
    /// Forgets all works. Their ids are not used again.
    pub(super) fn begin(&mut self) {
        self.pending.clear();
        self.out.clear();
    }

    /// Hands out a work that has an answer.
    pub(super) fn open(&mut self, pending: Pending, task: Task, now: Time) -> WorkId {
        let id = self.hand_out(task);
        self.pending.insert(id, (now, pending));
        id
    }

    /// Records an event. It has no answer.
    pub(super) fn record(&mut self, event: Event) {
        self.hand_out(Task::Event(event));
    }

    fn hand_out(&mut self, task: Task) -> WorkId {
        let id = self.next_id.advance();
        self.out.push(Work { id, task });
        id
    }

    /// Takes a work out that an answer is for. An answer of another kind says nothing.
    pub(super) fn close(&mut self, id: WorkId, fits: fn(&Pending) -> bool) -> Option<Pending> {
        let (_, pending) = self.pending.get(&id)?;
        if !fits(pending) {
            return None;
        }
        self.pending.remove(&id).map(|(_, pending)| pending)
    }

    /// Takes the oldest work out, if it is lost.
    pub(super) fn lose(&mut self, now: Time) -> Option<(WorkId, Pending)> {
        let oldest = self.pending.first_entry()?;
        let (since, _) = oldest.get();
        if now.since(*since) < LOST {
            return None;
        }
        let (id, (_, pending)) = oldest.remove_entry();
        Some((id, pending))
    }

    /// The id of the next work.
    pub(super) const fn next_id(&self) -> WorkId {
        self.next_id
    }

    /// True if a call of this owner is in flight.
    pub(super) fn has_call(&self, key: &Key) -> bool {
        let mut all = self.pending.values();
        all.any(|(_, it)| matches!(it, Pending::Call { entry, .. } if entry.key == *key))
    }

    /// The works to hand out, each once.
    pub(super) fn take(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.out)
    }
}
