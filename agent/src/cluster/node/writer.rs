//! Writer of `spec.ipam.pools` of the node's `CiliumNode`, and of its `status.ipam`.
//!
//! It queries the actor's demand only when the actor has the very document to change, and the
//! outcome of the last write is known. Released addresses are therefore never taken again without
//! the operator's knowledge.

use std::sync::Arc;
use std::time::Duration;

use apiserver::write::Failure;
use apiserver::{cause, client, objects};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kubernetes::node::node_pools::{self, NodeDemand};
use kubernetes::node::write_pacing::{Outcome, Pace};
use kubernetes::node::{crd_mode, ingress};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::cluster::node::Current;
use crate::cluster::{DemandQuery, Signals};

/// Wait for the actor to have the newest document.
const BEHIND: Duration = Duration::from_millis(100);

pub(in crate::cluster) struct Writer {
    pub(in crate::cluster) nodes: Api<DynamicObject>,
    pub(in crate::cluster) name: String,
    pub(in crate::cluster) current: watch::Receiver<Option<Current>>,
    pub(in crate::cluster) ask: mpsc::Sender<DemandQuery>,
    pub(in crate::cluster) written: mpsc::Sender<Value>,
    pub(in crate::cluster) signals: Arc<Signals>,
    pub(in crate::cluster) interval: Duration,
}

impl Writer {
    /// Runs until the actor is gone.
    pub(in crate::cluster) async fn run(mut self) {
        let began = Instant::now();
        let mut pace = Pace::new(self.interval);
        let mut is_known = true;
        loop {
            let due = began + pace.due(began.elapsed());
            tokio::select! {
                () = self.ask.closed() => return,
                () = self.signals.changed.notified() => pace.changed(began.elapsed()),
                () = self.signals.waiting.notified() => pace.urgent(began.elapsed()),
                Ok(()) = self.current.changed() => pace.changed(began.elapsed()),
                () = sleep_until(due) => {
                    let outcome = if is_known { self.write().await } else { self.look().await };
                    if !is_known && outcome == Outcome::Done {
                        is_known = true;
                        pace.looked(began.elapsed());
                        continue;
                    }
                    // After a conflict the newest object is requested: the watch may lag.
                    is_known &= !matches!(outcome, Outcome::Failed | Outcome::Conflict);
                    pace.written(began.elapsed(), outcome);
                }
            }
        }
    }

    /// Reads the object, because it is not known what became of the last write.
    async fn look(&self) -> Outcome {
        match client::in_time(self.nodes.get_opt(&self.name)).await {
            Ok(Some(object)) => self.hand_on(object).await,
            // Without it there is nothing to write to.
            Ok(None) => Outcome::Done,
            Err(error) => outcome(&error),
        }
    }

    async fn write(&self) -> Outcome {
        let Some(current) = self.current.borrow().clone() else {
            return Outcome::Done;
        };
        if let Some(patch) = self.ingress(&current) {
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
            let patched = self.nodes.patch(&self.name, &parameters, &patch);
            return self.patched(client::in_time(patched).await).await;
        }
        let (reply, answer) = oneshot::channel();
        let ask = DemandQuery {
            generation: current.generation,
            reply,
        };
        if self.ask.send(ask).await.is_err() {
            return Outcome::Done;
        }
        let Ok(Some(demand)) = answer.await else {
            return Outcome::Later(BEHIND);
        };
        let Some(there) = node_pools::pools_of(&current.object) else {
            tracing::warn!("spec.ipam.pools of the CiliumNode cannot be read; it is not changed");
            return Outcome::Done;
        };
        let next = if current.in_force {
            demand.next(&there)
        } else {
            demand.next_held(&current.object, &there)
        };
        let Some(patch) = demand.patch(&current.object, &there, next.as_ref()) else {
            return self.write_status(&current, &demand).await;
        };
        let patch = Patch::Merge(patch);
        let parameters = PatchParams::default();
        let patched = self.nodes.patch(&self.name, &parameters, &patch);
        self.patched(client::in_time(patched).await).await
    }

    /// The patch that puts the agent's own addresses into the object.
    fn ingress(&self, current: &Current) -> Option<Value> {
        let addresses = self.signals.ingress.borrow();
        ingress::patch(&current.object, addresses.as_ref()?)
    }

    /// Writes who has which single address, or has what an agent in that mode left be gone.
    async fn write_status(&self, current: &Current, demand: &NodeDemand) -> Outcome {
        let patch = match &demand.flat {
            Some(flat) if current.in_force => flat.patch(&current.object),
            Some(_) => None,
            None => crd_mode::cleared(&current.object),
        };
        let Some(patch) = patch else {
            return Outcome::Done;
        };
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.nodes.patch_status(&self.name, &parameters, &patch);
        self.patched(client::in_time(patched).await).await
    }

    /// Records the outcome of a write. The outcome of one that timed out is unknown.
    async fn patched(&self, patched: kube::Result<DynamicObject>) -> Outcome {
        match patched {
            Ok(object) => {
                tracing::debug!("CiliumNode written");
                self.hand_on(object).await
            }
            Err(error) => {
                tracing::info!("the CiliumNode is not written: {}", cause::chain(&error));
                outcome(&error)
            }
        }
    }

    /// Passes the server's answer on as the node's document.
    async fn hand_on(&self, object: DynamicObject) -> Outcome {
        if let Ok(object) = objects::value(object) {
            // The task that takes it ends with the agent.
            self.written.send(object).await.ok();
        }
        Outcome::Done
    }
}

/// Consequence of an error for the next try.
fn outcome(error: &kube::Error) -> Outcome {
    match Failure::from(error) {
        Failure::Conflict => Outcome::Conflict,
        Failure::Busy(wait) => Outcome::Later(wait.max(Pace::URGENT)),
        // It is gone, which the watch will report.
        Failure::Absent => Outcome::Done,
        Failure::Refused | Failure::Unknown => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_an_error_means_for_the_next_try() {
        let of = |code: u16, seconds: u32| {
            let details = json!({"retryAfterSeconds": seconds});
            let status = json!({"code": code, "details": details});
            outcome(&kube::Error::Api(serde_json::from_value(status).unwrap()))
        };
        assert_eq!(of(409, 0), Outcome::Conflict);
        assert_eq!(of(429, 7), Outcome::Later(Duration::from_secs(7)));
        assert_eq!(of(404, 0), Outcome::Done);
        for code in [403, 422, 500, 503] {
            assert_eq!(of(code, 0), Outcome::Failed, "{code}");
        }
    }
}
