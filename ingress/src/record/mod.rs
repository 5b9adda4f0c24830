//! The record of requests that are not undone, and the next step for it. No I/O, no clock.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::backoff::Backoff;
use crate::request::Request;

/// The record on disk. It is written before a plugin is called, and cleared after the plugin's DEL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Record {
    /// The attachments; at most one of them is in use.
    #[serde(default)]
    pub entries: Vec<Entry>,
}

/// One attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Entry {
    /// All that the plugin is called with.
    pub request: Request,
    /// Its progress.
    #[serde(deserialize_with = "known_or_asked")]
    pub state: State,
}

/// Reads a state. One that only later agents know is read as [`State::Asked`], so that DEL follows.
fn known_or_asked<'de, D: Deserializer<'de>>(deserializer: D) -> Result<State, D::Error> {
    let state = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(state).unwrap_or(State::Asked))
}

/// Progress of an attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// ADD was sent, or is about to be: what became of it is not known, so DEL comes next.
    Asked,
    /// The plugin gave addresses.
    #[serde(rename_all = "kebab-case")]
    Given {
        /// The addresses.
        addresses: BTreeSet<IpAddr>,
        /// The plugin's result, for CHECK.
        result: Value,
    },
    /// DEL is owed.
    Leaving,
}

/// Knowledge beside the record; it ends with the process.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The request whose addresses are in use.
    pub(crate) taken: Option<Request>,
    /// The request of which CHECK has found nothing wrong.
    pub(crate) checked: Option<Request>,
    /// Failures of ADD, CHECK and use.
    pub(crate) add: Backoff,
    /// Failures of giving up and of DEL, by request.
    pub(crate) deletes: Vec<(Request, Backoff)>,
}

/// The next step. A number is the place of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Call the plugin's DEL.
    Delete(usize),
    /// Write down that the addresses are not wanted any more, and use them no more.
    Leave(usize),
    /// Use the addresses.
    Take(usize),
    /// Call CHECK, by which the plugin confirms that it still keeps them.
    Check(usize),
    /// Write the request down, and call the plugin's ADD.
    Add,
    /// Nothing, before this moment if there is one.
    Rest(Option<Duration>),
}

/// Decides on the next step for a request, or for none. All other entries are removed completely.
pub(crate) fn next(
    record: &Record,
    wanted: Option<&Request>,
    memory: &Memory,
    now: Duration,
) -> Step {
    let mut due = Vec::new();
    let mut is_blocked = false;
    let mut current = None;
    for (place, entry) in record.entries.iter().enumerate() {
        let is_wanted = wanted.is_some_and(|wanted| wanted.is_same(&entry.request));
        match &entry.state {
            State::Given { .. } if is_wanted && current.is_none() => current = Some(place),
            state => match memory.delete(&entry.request).waits(now) {
                None if matches!(state, State::Given { .. }) => return Step::Leave(place),
                None => return Step::Delete(place),
                Some(until) => {
                    due.push(until);
                    // A plugin does not distinguish the two, so the next ADD would return the
                    // addresses to be removed.
                    is_blocked |= wanted.is_some_and(|one| one.is_of_same(&entry.request));
                }
            },
        }
    }
    let step = match (wanted, current) {
        (None, _) => None,
        (Some(_), None) => (!is_blocked).then_some(Step::Add),
        (Some(_), Some(place)) => use_of(record, place, memory),
    };
    if let Some(step) = step {
        match memory.add.waits(now) {
            None => return step,
            Some(until) => due.push(until),
        }
    }
    Step::Rest(due.into_iter().min())
}

/// The step that is left before given addresses are in use.
fn use_of(record: &Record, place: usize, memory: &Memory) -> Option<Step> {
    let request = &record.entries.get(place)?.request;
    // Addresses of an earlier process stay in use until CHECK fails.
    if memory.taken.as_ref() != Some(request) {
        return Some(Step::Take(place));
    }
    let is_checked = memory.checked.as_ref() == Some(request) || !request.has_check();
    (!is_checked).then_some(Step::Check(place))
}

impl Memory {
    fn delete(&self, request: &Request) -> Backoff {
        let mut all = self.deletes.iter();
        let found = all.find(|(of, _)| of == request);
        found.map(|(_, backoff)| *backoff).unwrap_or_default()
    }

    /// Records a failed DEL.
    pub(crate) fn delete_failed(&mut self, request: &Request, now: Duration) {
        let mut backoff = self.delete(request);
        backoff.fail(now);
        self.delete_done(request);
        self.deletes.push((request.clone(), backoff));
    }

    /// Forgets how DEL has fared.
    pub(crate) fn delete_done(&mut self, request: &Request) {
        self.deletes.retain(|(of, _)| of != request);
    }
}

impl Record {
    /// The addresses of an owner that are in use, or may be.
    #[must_use]
    pub fn given(&self) -> BTreeSet<IpAddr> {
        let states = self.entries.iter().map(|entry| &entry.state);
        let given = states.filter_map(|state| match state {
            State::Given { addresses, .. } => Some(addresses),
            State::Asked | State::Leaving => None,
        });
        given.flatten().copied().collect()
    }

    /// Sets the state of an entry.
    pub(crate) fn set(&mut self, place: usize, state: State) {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.state = state;
        }
    }
}

#[cfg(test)]
mod tests;
