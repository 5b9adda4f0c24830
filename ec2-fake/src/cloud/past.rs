//! The versions of an object: reads may see an old one.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// Versions by the time of their beginning; a deleted object has none at that time.
#[derive(Clone, Debug)]
pub(crate) struct Past<T> {
    versions: Vec<(Timestamp, Option<Arc<T>>)>,
}

impl<T> Past<T> {
    pub(crate) fn new(now: Timestamp, value: T) -> Self {
        Self {
            versions: vec![(now, Some(Arc::new(value)))],
        }
    }

    /// The version of now.
    pub(crate) fn latest(&self) -> Option<&Arc<T>> {
        self.versions.last()?.1.as_ref()
    }

    /// The last version that was not a deletion.
    pub(crate) fn last_seen(&self) -> Option<&Arc<T>> {
        self.versions
            .iter()
            .rev()
            .find_map(|(_, value)| value.as_ref())
    }

    /// The version of a time.
    pub(crate) fn at(&self, time: Timestamp) -> Option<&Arc<T>> {
        let before = self.versions.iter().rev().find(|(since, _)| *since <= time);
        before?.1.as_ref()
    }

    /// Adds a version. Those that ended longer ago than `kept` go.
    pub(crate) fn set(&mut self, now: Timestamp, value: Option<Arc<T>>, kept: SignedDuration) {
        self.versions.push((now, value));
        let horizon = now.checked_sub(kept).unwrap_or(Timestamp::MIN);
        let old = self
            .versions
            .iter()
            .rposition(|(since, _)| *since <= horizon);
        self.versions.drain(..old.unwrap_or(0));
    }
}
