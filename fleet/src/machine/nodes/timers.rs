//! The times of the nodes' next checks.

use std::collections::{BTreeMap, BTreeSet};

use ipam::Time;

#[derive(Debug, Default)]
pub(in crate::machine) struct Timers {
    by_time: BTreeSet<(Time, String)>,
    by_name: BTreeMap<String, Time>,
}

impl Timers {
    /// Forgets all times.
    pub(in crate::machine) fn clear(&mut self) {
        self.by_time.clear();
        self.by_name.clear();
    }

    /// Sets the time of a node; none for no time.
    pub(in crate::machine) fn set(&mut self, name: &str, at: Option<Time>) {
        if let Some(old) = self.by_name.remove(name) {
            self.by_time.remove(&(old, name.to_owned()));
        }
        if let Some(at) = at {
            self.by_time.insert((at, name.to_owned()));
            self.by_name.insert(name.to_owned(), at);
        }
    }

    /// Takes the nodes out whose time has come.
    pub(in crate::machine) fn due(&mut self, now: Time) -> Vec<String> {
        let mut due = Vec::new();
        while let Some((at, name)) = self.by_time.pop_first() {
            if at > now {
                self.by_time.insert((at, name));
                break;
            }
            self.by_name.remove(&name);
            due.push(name);
        }
        due
    }

    pub(in crate::machine) fn next(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }
}
