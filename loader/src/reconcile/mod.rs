//! The loop's body: observe, plan, apply, verify.

mod repairs;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use self::repairs::{RepairWar, Repairs};
use crate::intent::Intent;
use crate::kernel::{Kernel, Scope};
use crate::plan::plan;
use crate::view::View;

/// A step that did not work, or a kernel that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What the step serves.
    #[serde(skip)]
    pub scope: Option<Scope>,
    /// What was tried, in words.
    pub step: String,
    /// The error and its causes.
    pub error: String,
}

/// What a pass did and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Steps that were carried out.
    pub applied: usize,
    /// Steps that are still to be done after it: failed, held back or deferred. None: success.
    pub remaining: usize,
    /// What did not work.
    pub failures: Vec<Failure>,
    /// The node as it was at the end.
    pub view: View,
    /// When the next pass is due although nothing happens, because a repair was deferred.
    pub next_due: Option<Duration>,
}

impl Pass {
    /// Whether the kernel is as it should be.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.remaining == 0 && self.failures.is_empty()
    }
}

/// Brings a kernel to an intent, and keeps count of what others undo.
pub struct Reconciler<K> {
    kernel: K,
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    repairs: Repairs,
}

impl<K: Kernel> Reconciler<K> {
    /// A reconciler of `kernel` that takes the time from `clock`.
    pub fn new(kernel: K, clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self {
            kernel,
            clock: Box::new(clock),
            repairs: Repairs::default(),
        }
    }

    /// The kernel.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// The kernel, to read counters from and the like.
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Repairs made so far.
    pub fn repairs(&self) -> &Repairs {
        &self.repairs
    }

    /// One pass.
    pub async fn pass(&mut self, intent: &Intent) -> Pass {
        let _ = (self.clock)();
        let observed = self.kernel.observe().await.unwrap_or_default();
        Pass {
            view: plan(intent, &observed).view,
            ..Pass::default()
        }
    }
}
