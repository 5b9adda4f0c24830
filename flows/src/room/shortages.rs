//! Shortages at a sweep, for each flow.

use std::collections::HashSet;

use datapath_common::abi::{Flow, FlowKey, Note, inbound_quota};
use ipam::Family;

use super::crowd::Crowded;
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
}

impl Shortages {
    /// For a translated flow.
    pub(crate) fn of_flow(&self, family: Family, key: &FlowKey, flow: &Flow) -> Short {
        let endpoint = flow.endpoint;
        let is_crowded = self.crowded.has(key);
        Short {
            room: self.tables.flows(family) || self.quotas.contains(&endpoint),
            half: is_crowded || self.halves.contains(&endpoint),
            ports: is_crowded && self.crowded.is_greedy(key, endpoint),
        }
    }

    /// For a noted flow. Nothing limits an endpoint's notes of the host's stack.
    pub(crate) fn of_note(&self, kind: NoteKind, note: &Note) -> Short {
        let key = inbound_quota(note.endpoint);
        let is_full = kind == NoteKind::Inbound && self.quotas.contains(&key);
        Short::from(self.tables.notes(kind) || is_full)
    }
}
