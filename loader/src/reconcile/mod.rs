//! The loop's body: observe, plan, apply, verify.
//!
//! An [`Intent`] is complete: its maker builds it only after the node document and the endpoint
//! records have been read. So whatever is ours and not in it may be removed.

mod endpoints;
mod former_addresses;
mod lingering;
#[cfg(any(test, feature = "model"))]
#[allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "tests alone have it"
)]
pub mod model;
#[cfg(test)]
mod properties;
mod repairs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use self::endpoints::EndpointsPass;
use self::former_addresses::FormerAddresses;
use self::repairs::Ledger;
pub use self::repairs::Repairs;
use crate::intent::Intent;
use crate::kernel::{Kernel, Observed, Scope, StepKind};
use crate::observation::view::View;
use crate::plan::{Plan, Planned, plan, rests_on};

/// Number of rounds of a pass. A new endpoint takes two, since its device's index is known only
/// once the device is there. The third repairs drift in between.
const ROUNDS: usize = 3;

const READING: &str = "read the kernel's state";

/// Something that did not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its scope: `node`, `eni 1`, `endpoint 0123456789ab`.
    pub scope: String,
    /// The step, in words.
    pub step: String,
    /// The error and its causes.
    pub error: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.error)
    }
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Steps that were carried out.
    pub applied: usize,
    /// Steps that are still to be done: failed, held back or deferred. None: success.
    pub remaining: usize,
    /// The failed steps.
    pub failures: Vec<Failure>,
    /// Addresses of which something is still in the kernel and has to go; `None` where that is not
    /// known.
    pub lingering: Option<BTreeSet<IpAddr>>,
    /// The node as it was at the end.
    pub view: View,
    /// When a repair that was deferred is due, so that a pass has to follow even if nothing
    /// happens.
    pub next_due: Option<Duration>,
}

impl Pass {
    /// True if the kernel is as it should be.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.remaining == 0 && self.failures.is_empty()
    }
}

/// Brings a kernel to an intent, and keeps count of what others undo.
pub struct Reconciler<K> {
    kernel: K,
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    ledger: Ledger,
    former_addresses: FormerAddresses,
    /// The intent of the last pass that could read the kernel to its end.
    settled: Option<Intent>,
    /// The node's own state at the end of the last pass, if it could read the kernel.
    node: Option<Observed>,
    view: View,
}

/// A pass in progress.
#[derive(Default)]
struct Progress {
    applied: usize,
    failures: Vec<(Scope, Failure)>,
    /// Steps that failed or rest on one that did, by scope. They wait for the next pass.
    held: Held,
    next_due: Option<Duration>,
}

/// Steps that are not carried out, by scope.
#[derive(Clone, Default)]
struct Held(BTreeMap<Scope, Vec<Planned>>);

impl Held {
    /// True if a step rests on one of these; then it is one of them from now on.
    fn takes(&mut self, planned: &Planned, observed: &Observed) -> bool {
        let Some(held) = self.0.get_mut(&planned.step.scope) else {
            return false;
        };
        let waits = held.iter().any(|other| rests_on(planned, other, observed));
        if waits {
            held.push(planned.clone());
        }
        waits
    }

    fn add(&mut self, planned: Planned) {
        self.0.entry(planned.step.scope).or_default().push(planned);
    }
}

impl<K: Kernel> Reconciler<K> {
    /// A reconciler of `kernel` that takes the time from `clock`.
    pub fn new(kernel: K, clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self {
            kernel,
            clock: Box::new(clock),
            ledger: Ledger::default(),
            former_addresses: FormerAddresses::default(),
            settled: None,
            node: None,
            view: View::default(),
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

    /// Gives the kernel back.
    pub fn into_kernel(self) -> K {
        self.kernel
    }

    /// The repairs up to now.
    pub fn repairs(&mut self) -> Repairs {
        self.ledger.repairs((self.clock)())
    }

    /// One pass: up to three rounds of observe, plan and apply, and a last observation. A failed
    /// step holds back only the steps that depend on it, until the next pass.
    pub async fn pass(&mut self, intent: &Intent) -> Pass {
        self.pass_from(intent, None).await
    }

    /// A pass whose first round goes by the caller's own fresh observation.
    pub async fn pass_from(&mut self, intent: &Intent, mut seen: Option<Observed>) -> Pass {
        if self.settled.as_ref().is_some_and(|last| last != intent) {
            self.settled = None;
            self.ledger.forget_all();
        }
        self.node = None;
        let mut progress = Progress::default();
        for _ in 0..ROUNDS {
            let (plan, observed) = match seen.take() {
                Some(observed) => (self.plan(intent, &observed), observed),
                None => match self.look(intent).await {
                    Ok(look) => look,
                    Err(error) => return self.failed_pass(progress, READING, &error),
                },
            };
            // This is also needed without a step: the last announced state may never have been
            // reached.
            if let Err(error) = self.kernel.announce(&plan.objects) {
                return self.failed_pass(progress, "prepare a change", &error);
            }
            let due = self.due(&plan, &observed, &mut progress);
            if due.is_empty() {
                return self.finish(intent, plan, observed, progress);
            }
            self.apply(due, &observed, &mut progress).await;
        }
        match self.look(intent).await {
            Ok((plan, observed)) => {
                self.due(&plan, &observed, &mut progress);
                self.finish(intent, plan, observed, progress)
            }
            Err(error) => self.failed_pass(progress, READING, &error),
        }
    }

    async fn look(&mut self, intent: &Intent) -> anyhow::Result<(Plan, Observed)> {
        let observed = self.kernel.observe().await?;
        Ok((self.plan(intent, &observed), observed))
    }

    /// The plan of this round.
    fn plan(&mut self, intent: &Intent, observed: &Observed) -> Plan {
        let mut plan = plan(intent, observed);
        self.former_addresses
            .hold_back(&mut plan, observed, (self.clock)());
        plan
    }

    /// The steps that may be tried now. What rests on a step that has to wait waits as well: an
    /// endpoint's device must not come up without its program.
    fn due(&mut self, plan: &Plan, observed: &Observed, progress: &mut Progress) -> Vec<Planned> {
        let now = (self.clock)();
        progress.next_due = self.former_addresses.next_due(now);
        let mut due = Vec::new();
        let mut waiting = progress.held.clone();
        for planned in &plan.steps {
            if waiting.takes(planned, observed) {
                continue;
            }
            match self.ledger.wait(&planned.object, now) {
                Some(wait) => {
                    let soonest = progress.next_due.map_or(wait, |due| due.min(wait));
                    progress.next_due = Some(soonest);
                    waiting.add(planned.clone());
                }
                None => due.push(planned.clone()),
            }
        }
        due
    }

    async fn apply(&mut self, due: Vec<Planned>, observed: &Observed, progress: &mut Progress) {
        let mut due = due.into_iter();
        let mut are_together = false;
        while let Some(planned) = due.next() {
            if progress.held.takes(&planned, observed) {
                continue;
            }
            if !are_together && matches!(planned.step.kind, StepKind::DeleteDevice(_)) {
                are_together = true;
                let rest = due.as_slice();
                self.delete_together(&planned, rest, observed, &progress.held)
                    .await;
            }
            let scope = planned.step.scope;
            let text = || planned.object.describe(&observed.links);
            match self.kernel.apply(&planned.step).await {
                Ok(()) => {
                    progress.applied += 1;
                    self.note(&planned, text);
                }
                Err(error) => {
                    let failure = Failure {
                        scope: scope.to_string(),
                        step: format!("{} {}", if planned.adds { "add" } else { "remove" }, text()),
                        error: format!("{error:#}"),
                    };
                    progress.failures.push((scope, failure));
                    progress.held.add(planned);
                }
            }
        }
    }

    /// Deletes the devices of a step and of those that follow it, unless they have to stay.
    async fn delete_together(
        &mut self,
        first: &Planned,
        rest: &[Planned],
        observed: &Observed,
        held: &Held,
    ) {
        let mut held = held.clone();
        let rest = rest.iter().filter(|planned| !held.takes(planned, observed));
        let devices = std::iter::once(first).chain(rest);
        let devices: Vec<u32> = devices
            .map_while(|planned| match planned.step.kind {
                StepKind::DeleteDevice(ifindex) => Some(ifindex),
                _ => None,
            })
            .collect();
        if devices.len() > 1 {
            self.kernel.delete_together(&devices).await;
        }
    }

    fn note(&mut self, planned: &Planned, text: impl FnOnce() -> String) {
        if planned.adds && self.ledger.is_repair(&planned.object) {
            let text = text();
            tracing::info!(object = text, "repaired");
            self.ledger.count(planned.object, text, (self.clock)());
        }
        if !planned.adds {
            self.ledger.forget(&planned.object);
        }
    }

    /// The pass of a kernel that could not be read or prepared: what was known before, and the
    /// reason.
    fn failed_pass(&mut self, progress: Progress, step: &str, error: &anyhow::Error) -> Pass {
        let failure = Failure {
            scope: Scope::Node.to_string(),
            step: step.to_owned(),
            error: format!("{error:#}"),
        };
        let mut view = self.view.clone();
        view.note_failure(Scope::Node, &failure.to_string());
        let earlier = progress.failures.into_iter().map(|(_, failure)| failure);
        Pass {
            applied: progress.applied,
            remaining: 0,
            failures: earlier.chain([failure]).collect(),
            lingering: None,
            view,
            next_due: progress.next_due,
        }
    }

    fn finish(
        &mut self,
        intent: &Intent,
        plan: Plan,
        observed: Observed,
        progress: Progress,
    ) -> Pass {
        self.node = Some(observed.without_endpoints());
        let mut view = plan.view;
        let failures = persisting_failures(progress.failures, &plan.steps, &mut view);
        if plan.steps.is_empty() {
            self.ledger.settle(plan.objects);
        } else {
            self.ledger.settle_more(plan.settled);
        }
        if self.settled.as_ref() != Some(intent) {
            self.settled = Some(intent.clone());
        }
        self.view.clone_from(&view);
        Pass {
            applied: progress.applied,
            remaining: plan.steps.len(),
            failures,
            lingering: Some(lingering::addresses(&plan.steps)),
            view,
            next_due: progress.next_due,
        }
    }
}

/// The failures that remain at the end of a pass with these steps left, recorded in the view. A
/// failed step whose object is right by now is no failure.
fn persisting_failures(
    failures: Vec<(Scope, Failure)>,
    left: &[Planned],
    view: &mut View,
) -> Vec<Failure> {
    let remaining: BTreeSet<Scope> = left.iter().map(|planned| planned.step.scope).collect();
    let mut stand = Vec::new();
    for (scope, failure) in failures {
        if remaining.contains(&scope) {
            view.note_failure(scope, &failure.to_string());
            stand.push(failure);
        }
    }
    view.spread();
    stand
}
