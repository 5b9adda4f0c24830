//! The map of notes of the host's stack, and the reaper that knows it: both are others once notes begin.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use aya::Ebpf;
use datapath_common::abi::{Note, PodTuple, map};

use super::nat::{capacity, table};
use super::sys::table::Table;

/// The map of notes, and the reaper.
pub(super) struct Stack {
    /// The map.
    pub(super) table: Table<PodTuple, Note>,
    /// Its room.
    pub(super) capacity: u32,
    /// The reaper that was loaded with it.
    pub(super) reaper: OwnedFd,
}

impl Stack {
    /// The map of an object whose reaper this is.
    ///
    /// # Errors
    /// When it is missing or cannot be examined.
    pub(super) fn new(ebpf: &Ebpf, reaper: OwnedFd) -> Result<Self> {
        Ok(Self {
            table: table(ebpf, map::STACK)?,
            capacity: capacity(ebpf, map::STACK)?,
            reaper,
        })
    }
}

/// The map, shared among its users.
#[derive(Clone)]
pub(super) struct SharedStack(Arc<Mutex<Arc<Stack>>>);

impl SharedStack {
    pub(super) fn new(stack: Stack) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(stack))))
    }

    /// The map in use.
    pub(super) fn get(&self) -> Arc<Stack> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes all users take another one from now on.
    pub(super) fn replace(&self, stack: Stack) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(stack);
    }
}
