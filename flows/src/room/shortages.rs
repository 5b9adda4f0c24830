//! Shortages at a sweep, for each flow.

use std::collections::HashSet;

use datapath_common::abi::{Flow, FlowKey, TrackedFlow, inbound_quota};
use ipam::Family;

use super::crowd::Crowded;
use super::greedy::Greedy;
use super::pressed::Pressed;
use crate::sweep::expiry::Short;
use crate::tables::NoteKind;

/// Shortages. An endpoint that has used up its quota shortens the timeouts of its own flows alone.
pub(crate) struct Shortages {
    /// Tables.
    pub(crate) tables: Pressed,
    /// Keys of `QUOTA` whose endpoints have used up nearly all of it.
    pub(crate) quotas: HashSet<u32>,
    /// Keys of `QUOTA` whose endpoints have used more than half of it.
    pub(crate) halves: HashSet<u32>,
    /// Destinations that are short of ports.
    pub(crate) crowded: Crowded,
    /// Endpoints that have more than a fair share of a table.
    pub(crate) greedy: Greedy,
}

impl Shortages {
    /// For a translated flow.
    pub(crate) fn of_flow(&self, family: Family, key: &FlowKey, flow: &Flow) -> Short {
        let endpoint = flow.endpoint;
        let (is_full, is_crowded) = (self.tables.flows(family), self.crowded.has(key));
        Short {
            room: is_full || self.quotas.contains(&endpoint),
            half: is_crowded || self.halves.contains(&endpoint),
            most: (is_crowded && self.crowded.is_greedy(key, endpoint))
                || (is_full && self.greedy.has(family, endpoint)),
        }
    }

    /// For a noted flow. Nothing limits an endpoint's notes of the host's stack.
    pub(crate) fn of_note(&self, kind: NoteKind, note: &TrackedFlow) -> Short {
        let key = inbound_quota(note.endpoint);
        let is_full = kind == NoteKind::Inbound && self.quotas.contains(&key);
        Short::from(self.tables.notes(kind) || is_full)
    }
}
