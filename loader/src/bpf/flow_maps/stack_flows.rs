//! The map of flow marks of the host's stack, and the reaper that uses it. Both are replaced when
//! marks are switched on.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use aya::Ebpf;
use datapath_common::abi::{PodTuple, TrackedFlow, map};

use crate::bpf::flow_maps::nat::{capacity, table};
use crate::bpf::sys::table::Table;

/// The map of notes, and the reaper.
pub(in crate::bpf) struct Stack {
    /// The map.
    pub(in crate::bpf) table: Table<PodTuple, TrackedFlow>,
    /// Its room.
    pub(in crate::bpf) capacity: u32,
    /// The reaper that was loaded with it.
    pub(in crate::bpf) reaper: OwnedFd,
}

impl Stack {
    /// The map of an object whose reaper this is.
    ///
    /// # Errors
    /// When it is missing or cannot be examined.
    pub(in crate::bpf) fn new(ebpf: &Ebpf, reaper: OwnedFd) -> Result<Self> {
        Ok(Self {
            table: table(ebpf, map::STACK)?,
            capacity: capacity(ebpf, map::STACK)?,
            reaper,
        })
    }
}

/// The map, shared among its users.
#[derive(Clone)]
pub(in crate::bpf) struct SharedStack(Arc<Mutex<Arc<Stack>>>);

impl SharedStack {
    pub(in crate::bpf) fn new(stack: Stack) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(stack))))
    }

    /// The map in use.
    pub(in crate::bpf) fn get(&self) -> Arc<Stack> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes all users take another one from now on.
    pub(in crate::bpf) fn replace(&self, stack: Stack) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(stack);
    }
}
