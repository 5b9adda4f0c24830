//! Keeps labels and annotations of pods and namespaces for an agent that starts while the API server
//! is away.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kubernetes::pool::pool_selection::Metadata;
use tokio::time::{Instant, sleep_until};

use sources::kept::Kept;

/// Time for which changes are collected: pods come in bursts.
const COLLECT: Duration = Duration::from_secs(1);

/// Record of the objects of a kind, and the time when it is due.
pub(super) struct Keeper {
    kept: Kept,
    /// Name of the kept objects.
    source: String,
    /// True once all objects have arrived: a part of them is not kept.
    is_whole: bool,
    due: Option<Instant>,
}

impl Keeper {
    pub(super) const fn new(kept: Kept, source: String) -> Self {
        Self {
            kept,
            source,
            is_whole: false,
            due: None,
        }
    }

    /// Those that an earlier agent kept.
    pub(super) fn read(&self) -> Vec<Metadata> {
        let read = |text: &str| serde_json::from_str(text);
        self.kept.read_as(&self.source, read).unwrap_or_default()
    }

    /// Records an event: all objects have arrived, or the known ones have changed.
    pub(super) fn take_note(&mut self, is_whole: bool, is_new: bool) {
        let begins = is_whole && !self.is_whole;
        self.is_whole |= is_whole;
        if self.is_whole && (is_new || begins) {
            self.due.get_or_insert_with(|| Instant::now() + COLLECT);
        }
    }

    /// Waits until something is to be written; for ever where nothing is.
    pub(super) async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Writes what is known.
    pub(super) async fn write<K: Sync>(&mut self, all: &Mutex<HashMap<K, Metadata>>) {
        self.due = None;
        let mut all: Vec<Metadata> = {
            let all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.values().cloned().collect()
        };
        let (kept, source) = (self.kept.clone(), self.source.clone());
        let written = tokio::task::spawn_blocking(move || {
            all.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
            match serde_json::to_string(&all) {
                Ok(text) => kept.write(&source, &text),
                Err(error) => tracing::warn!("cannot record {source}: {error}"),
            }
        });
        if let Err(error) = written.await {
            tracing::warn!("{} are not kept: {error}", self.source);
        }
    }
}
