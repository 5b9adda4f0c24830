//! Leader election by a Lease (`coordination.k8s.io/v1`): of several processes one leads.
//!
//! [`election`] decides, without I/O and clock; this module sends the requests. The rules are those
//! of client-go's `leaderelection`, but for two. A leader stops some time before others may follow
//! it, so that its last requests end before. The creator of a Lease waits for the leader under a
//! deleted one.

pub mod election;

use std::pin::pin;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kubernetes::lease::Lease;
use nix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use self::election::{Election, Step, Term, Timing};
use crate::client::within;
use crate::write::Failure;
use crate::{cause, objects};

/// The situation of a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The Lease's holder, by its newest record that was seen.
    pub holder: Option<String>,
    /// The candidate's own term. It ends by itself: see [`Standing::left`].
    pub term: Option<Term>,
    /// The error of the last request, until one succeeds.
    pub trouble: Option<String>,
}

impl Standing {
    /// The time for which the candidate still leads; zero where it does not. `now` is [`now`].
    ///
    /// A leader begins nothing that may take longer than this.
    #[must_use]
    pub fn left(&self, now: Duration) -> Duration {
        let until = self.term.map_or(Duration::ZERO, |term| term.until);
        until.saturating_sub(now)
    }
}

/// The clock of elections: the time since the machine started, with the time that it was suspended.
/// It does not jump when the wall clock is set.
///
/// # Errors
/// When the kernel has no such clock.
pub fn now() -> nix::Result<Duration> {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from)
}

/// A unique identity of a process: a readable name, such as the host's, and a number.
#[must_use]
pub fn identity(name: &str) -> String {
    format!("{name}_{:016x}", fastrand::u64(..))
}

/// The wall clock as the API takes it in a Lease: `MicroTime` has six digits and no other number.
fn wall_clock() -> String {
    format!("{:.6}", Timestamp::now())
}

/// A candidate for a Lease.
#[derive(Debug)]
pub struct Candidate {
    api: Api<DynamicObject>,
    name: String,
    timing: Timing,
    election: Election,
    standing: watch::Sender<Standing>,
}

impl Candidate {
    /// A candidate for the Lease of that name in a namespace, and its standing. The identity is one
    /// of [`identity`].
    #[must_use]
    pub fn new(
        leases: Api<DynamicObject>,
        name: &str,
        identity: String,
        timing: Timing,
    ) -> (Self, watch::Receiver<Standing>) {
        let (standing, seen) = watch::channel(Standing::default());
        let candidate = Self {
            api: leases,
            name: name.to_owned(),
            timing,
            election: Election::new(identity, timing),
            standing,
        };
        (candidate, seen)
    }

    /// Takes part in the election until `stop`, and then releases the Lease. When `stop` is ready,
    /// no request of a term may be in flight, since another candidate may lead at once.
    ///
    /// # Errors
    /// If the clock cannot be read.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> nix::Result<()> {
        let mut stop = pin!(stop);
        loop {
            let step = self.election.next(now()?);
            let is_stopped = if let Step::Wait(due) = step {
                let wait = due.saturating_sub(now()?);
                tokio::select! {
                    () = &mut stop => true,
                    () = sleep(wait) => false,
                }
            } else {
                tokio::select! {
                    () = &mut stop => true,
                    done = self.carry_out(&step) => { done?; false }
                }
            };
            if is_stopped {
                return self.release().await;
            }
        }
    }

    /// Carries out a step that is a request.
    async fn carry_out(&mut self, step: &Step) -> nix::Result<()> {
        let begun = now()?;
        let answer = self.ask(step).await;
        let trouble = answer.as_ref().err().map(|error| cause::chain(error));
        let answer = answer.map_err(|error| Failure::from(&error));
        if *step == Step::Read {
            self.election.read(now()?, answer);
        } else {
            // The answer to a write has the object.
            let answer = answer.and_then(|lease| lease.ok_or(Failure::Unknown));
            self.election.wrote(begun, now()?, answer);
        }
        self.publish(trouble);
        Ok(())
    }

    /// Sends the request of a step, and waits for its answer.
    async fn ask(&self, step: &Step) -> kube::Result<Option<Lease>> {
        let object = match step {
            Step::Wait(_) => return Ok(None),
            Step::Read => within(self.timing.every, self.api.get_opt(&self.name)).await?,
            Step::Create(claim) => {
                let object = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": self.name}, "spec": claim.spec(&wall_clock()),
                });
                let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
                let parameters = PostParams::default();
                let made = self.api.create(&parameters, &object);
                Some(within(self.timing.every, made).await?)
            }
            Step::Update(version, claim) => {
                let patch = Patch::Merge(json!({
                    "metadata": {"resourceVersion": version},
                    "spec": claim.spec(&wall_clock()),
                }));
                let parameters = PatchParams::default();
                let patched = self.api.patch(&self.name, &parameters, &patch);
                Some(within(self.timing.every, patched).await?)
            }
        };
        let object = object.map(objects::value).transpose();
        let object = object.map_err(kube::Error::SerdeError)?;
        Ok(object.as_ref().map(Lease::read))
    }

    /// Makes the standing known.
    fn publish(&self, trouble: Option<String>) {
        let new = Standing {
            holder: self.election.holder().map(str::to_owned),
            term: self.election.term(),
            trouble,
        };
        self.standing.send_if_modified(|standing| {
            if let Some(trouble) = new
                .trouble
                .as_ref()
                .filter(|_| new.trouble != standing.trouble)
            {
                tracing::warn!(lease = self.name, "renew the lease: {trouble}");
            }
            match (standing.term, new.term) {
                (None, Some(_)) => tracing::info!(lease = self.name, "lease acquired"),
                (Some(_), None) => tracing::warn!(lease = self.name, "lease lost"),
                (Some(_), Some(_)) | (None, None) => {}
            }
            let is_changed = *standing != new;
            *standing = new;
            is_changed
        });
    }

    /// Ends the term, and gives the Lease to the next candidate.
    async fn release(mut self) -> nix::Result<()> {
        // The request that `stop` has interrupted may have written it.
        let lease = self.ask(&Step::Read).await;
        let lease = lease.map_err(|error| Failure::from(&error));
        self.election.read(now()?, lease);
        let release = self.election.release();
        self.publish(None);
        if let Some(step) = release {
            match self.ask(&step).await {
                Ok(_) => tracing::info!(lease = self.name, "lease released"),
                Err(error) => {
                    let cause = cause::chain(&error);
                    tracing::warn!(lease = self.name, "release the lease: {cause}");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
