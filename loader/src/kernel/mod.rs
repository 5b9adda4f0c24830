//! Kernel objects as values: what is observed, what is desired, and the steps from one to the
//! other. Nothing here does I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::EndpointId;

#[cfg(any(test, feature = "model"))]
#[allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::unwrap_used,
    reason = "tests alone have it"
)]
pub mod fixture;
mod object;
mod objects;
mod observed;
mod step;
mod text;

pub use object::{Object, ObjectKey};
pub use objects::{
    Action, Address, ForeignRoute, Hook, Link, LinkKind, MapEntry, MapKey, Neighbour, NextHop,
    Resolved, Route, Rule, Selector, Sysctl, SysctlScope, direction,
};
pub use observed::{Attachment, HostState, Observed};
pub use step::{Scope, Step, StepKind};

/// Endpoints and the addresses that they have, or had.
pub type Endpoints = BTreeMap<EndpointId, BTreeSet<IpAddr>>;

/// The kernel, as the reconciler sees it: the real one, or a model of it.
pub trait Kernel: Send {
    /// Reads everything that concerns us.
    fn observe(&mut self) -> impl Future<Output = anyhow::Result<Observed>> + Send;

    /// Reads what there is of some endpoints: their devices with what hangs on them, and the map
    /// entries of their addresses.
    fn observe_endpoints(
        &mut self,
        endpoints: &Endpoints,
    ) -> impl Future<Output = anyhow::Result<Observed>> + Send;

    /// Announces the desired objects before any step is carried out.
    ///
    /// # Errors
    /// If no step may be carried out.
    fn announce(&mut self, _objects: &BTreeSet<Object>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Announces desired objects in addition to those before.
    ///
    /// # Errors
    /// If no step may be carried out.
    fn announce_more(&mut self, _objects: &BTreeSet<Object>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Deletes devices together, as far as the kernel does that: it waits for all of them once.
    /// Their steps follow nevertheless.
    fn delete_together(&mut self, _devices: &[u32]) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Carries out one step. What is already so, or already gone, is success.
    fn apply(&mut self, step: &Step) -> impl Future<Output = anyhow::Result<()>> + Send;
}
