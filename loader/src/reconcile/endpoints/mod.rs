//! A pass over some endpoints: only their objects are observed and reconciled with the intent.
//!
//! It relies on the last whole pass for the state of the node and its ENIs. So it takes no longer
//! on a node with many endpoints. The next whole pass finds later changes there. It is due soon,
//! because the steps of this pass cause events.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::EndpointId;

use super::{Failure, Progress, READING, ROUNDS, Reconciler, lingering, persisting_failures};
use crate::intent::Intent;
use crate::kernel::{Endpoints, Kernel, MapEntry, Object, Observed, Scope};
use crate::observation::view::EndpointView;
use crate::plan::{Plan, Planned, plan};

/// The result of a pass over some endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointsPass {
    /// Steps that were carried out.
    pub applied: usize,
    /// Steps that are still to be done.
    pub remaining: usize,
    /// The failed steps.
    pub failures: Vec<Failure>,
    /// Addresses of these endpoints of which something is still in the kernel and has to go.
    pub lingering: BTreeSet<IpAddr>,
    /// The endpoints as they were at the end; those that there are not to be are left out.
    pub endpoints: BTreeMap<EndpointId, EndpointView>,
}

impl<K: Kernel> Reconciler<K> {
    /// True if [`Self::pass_endpoints`] can do its work: the last pass could read the kernel, and
    /// nothing but endpoints was left to change then.
    #[must_use]
    pub fn can_pass_endpoints(&self, intent: &Intent) -> bool {
        self.node.is_some()
            && self.settled.as_ref().is_some_and(|last| {
                last.node == intent.node
                    && last.settings == intent.settings
                    && last.policy == intent.policy
            })
    }

    /// Reconciles these endpoints with the intent, and removes those that are not in it. `None` if
    /// a whole pass has to come first.
    pub async fn pass_endpoints(
        &mut self,
        intent: &Intent,
        of: &Endpoints,
    ) -> Option<EndpointsPass> {
        if !self.can_pass_endpoints(intent) {
            return None;
        }
        let node = self.node.take()?;
        let others = intent.endpoints.iter();
        let others = others.filter(|(id, _)| !of.contains_key(id));
        let others = others.flat_map(|(_, endpoint)| endpoint.addresses.iter().copied());
        let others: BTreeSet<IpAddr> = others.collect();
        let intent = part(intent, of);
        let pass = self.pass_part(&intent, &node, of, &others).await;
        self.node = Some(node);
        Some(pass)
    }

    async fn pass_part(
        &mut self,
        intent: &Intent,
        node: &Observed,
        of: &Endpoints,
        others: &BTreeSet<IpAddr>,
    ) -> EndpointsPass {
        let mut progress = Progress::default();
        let mut rounds = 0;
        loop {
            let (plan, observed) = match self.look_at(intent, node, of, others).await {
                Ok(look) => look,
                Err(error) => return failed_pass(progress, READING, &error, of),
            };
            let due = self.due(&plan, &observed, &mut progress);
            if due.is_empty() || rounds == ROUNDS {
                return finish(plan, progress, of);
            }
            rounds += 1;
            if let Err(error) = self.kernel.announce_more(&plan.objects) {
                return failed_pass(progress, "prepare a change", &error, of);
            }
            self.apply(due, &observed, &mut progress).await;
        }
    }

    async fn look_at(
        &mut self,
        intent: &Intent,
        node: &Observed,
        of: &Endpoints,
        others: &BTreeSet<IpAddr>,
    ) -> anyhow::Result<(Plan, Observed)> {
        let observed = node.with(self.kernel.observe_endpoints(of).await?);
        let mut plan = plan(intent, &observed);
        let addresses = of.values().flatten().copied();
        let addresses: BTreeSet<IpAddr> = addresses.filter(|a| !others.contains(a)).collect();
        plan.steps.retain(|step| concerns(step, of, &addresses));
        Ok((plan, observed))
    }
}

/// True if a step concerns these endpoints. The scope of an entry that outlived its device names no
/// endpoint, so its address decides.
fn concerns(planned: &Planned, of: &Endpoints, addresses: &BTreeSet<IpAddr>) -> bool {
    match (planned.step.scope, planned.object) {
        (Scope::Endpoint(id), _) => of.contains_key(&id),
        (Scope::Node | Scope::Eni(_), Object::MapEntry(MapEntry::Address(address, entry))) => {
            entry.is_endpoint() && addresses.contains(&address)
        }
        (Scope::Node | Scope::Eni(_), _) => false,
    }
}

/// The intent with no other endpoints.
fn part(intent: &Intent, of: &Endpoints) -> Intent {
    let Intent {
        node,
        endpoints,
        settings,
        policy,
    } = intent;
    let some = of.keys().filter_map(|id| Some((*id, endpoints.get(id)?)));
    Intent {
        node: node.clone(),
        endpoints: some.map(|(id, endpoint)| (id, endpoint.clone())).collect(),
        settings: settings.clone(),
        policy: policy.clone(),
    }
}

fn finish(plan: Plan, progress: Progress, of: &Endpoints) -> EndpointsPass {
    let mut view = plan.view;
    let failures = persisting_failures(progress.failures, &plan.steps, &mut view);
    view.endpoints.retain(|id, _| of.contains_key(id));
    EndpointsPass {
        applied: progress.applied,
        remaining: plan.steps.len(),
        failures,
        lingering: lingering::addresses(&plan.steps),
        endpoints: view.endpoints,
    }
}

/// The pass of a kernel that could not be read or prepared.
fn failed_pass(
    progress: Progress,
    step: &str,
    error: &anyhow::Error,
    of: &Endpoints,
) -> EndpointsPass {
    let scopes = of.keys().map(|id| Scope::Endpoint(*id));
    let failures = scopes.map(|scope| Failure {
        scope: scope.to_string(),
        step: step.to_owned(),
        error: format!("{error:#}"),
    });
    let earlier = progress.failures.into_iter().map(|(_, failure)| failure);
    EndpointsPass {
        applied: progress.applied,
        remaining: 0,
        failures: earlier.chain(failures).collect(),
        // The kernel's state of them is unknown.
        lingering: of.values().flatten().copied().collect(),
        endpoints: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests;
