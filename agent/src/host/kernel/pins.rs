//! The pins of the programs and their maps, kept in place.

use std::fs;
use std::path::PathBuf;

use loader::bpf::Datapath;

use crate::state::lock::PinsLock;

/// The folder of the pins, locked.
pub(crate) struct Pins {
    lock: PinsLock,
    /// The folder beside the pins that names the state folder.
    identity: PathBuf,
    /// Why maps are not pinned, which was logged then.
    problem: Option<String>,
}

impl Pins {
    pub(crate) fn new(lock: PinsLock, identity: PathBuf) -> Self {
        Self {
            lock,
            identity,
            problem: None,
        }
    }

    /// Why maps are not pinned; `None` where they are.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Pins again what lost its pin. A failure holds nothing up: what is held open runs on.
    pub(super) fn keep(&mut self, datapath: &mut Datapath) {
        let kept = datapath.keep_pins();
        let kept = kept.and_then(|pinned| {
            if pinned {
                fs::create_dir_all(&self.identity)?;
                self.lock.renew()?;
            }
            Ok(())
        });
        let error = kept.err().map(|error| {
            format!("maps are not pinned, so the datapath would end with the agent: {error:#}")
        });
        if let Some(error) = &error
            && self.problem.as_ref() != Some(error)
        {
            tracing::error!("{error}");
        }
        self.problem = error;
    }
}
