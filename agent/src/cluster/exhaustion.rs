//! Keeps the Node's condition about pools without an address left as it is to be.

use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver::client::REPLY_TIMEOUT;
use apiserver::retry::Retry;
use apiserver::{cause, objects};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kubernetes::report::exhaustion::{self, CONDITION, Exhaustion};
use tokio::time::{Instant, sleep, timeout};

use crate::server::{Command, Handle};

/// Interval between checks.
const LOOK: Duration = Duration::from_secs(2);

/// The task.
pub(super) struct Condition {
    pub(super) client: Client,
    /// The Node's name.
    pub(super) node: String,
    /// The agent, for its pools.
    pub(super) agent: Handle,
}

impl Condition {
    /// Runs until the agent takes no commands any more.
    pub(super) async fn run(self) {
        let began = Instant::now();
        let mut exhaustion = Exhaustion::default();
        let mut retry = Retry::default();
        let mut trouble = None;
        while !self.agent.is_closed() {
            let mut wait = LOOK;
            if let Ok(exhausted) = self.agent.ask(Command::Exhausted).await
                && exhaustion.is_due(began.elapsed(), &exhausted)
            {
                exhaustion.tries(began.elapsed());
                let failed = match self.write(&exhausted).await {
                    Ok(is_there) => {
                        retry.succeeded();
                        exhaustion.written(began.elapsed(), exhausted, is_there);
                        None
                    }
                    Err(error) => {
                        wait = retry.failed(error.as_ref());
                        Some(cause::chain(error.as_ref()))
                    }
                };
                if let Some(error) = failed.as_ref().filter(|_| failed != trouble) {
                    tracing::warn!(node = self.node, "set the condition {CONDITION}: {error}");
                }
                trouble = failed;
            }
            sleep(wait).await;
        }
    }

    /// Makes the condition right, if the API server answers in time. The answer is true if the Node
    /// has the condition.
    async fn write(&self, exhausted: &[String]) -> Result<bool> {
        let written = timeout(REPLY_TIMEOUT, self.look(exhausted)).await;
        written.context("the API server does not answer").flatten()
    }

    async fn look(&self, exhausted: &[String]) -> Result<bool> {
        let api = objects::kubernetes_nodes(&self.client);
        let node = objects::value(api.get(&self.node).await.context("read the Node")?)?;
        let now = Timestamp::from_second(Timestamp::now().as_second())?.to_string();
        let Some(patch) = exhaustion::patch(&node, exhausted, &now) else {
            return Ok(false);
        };
        let patch = Patch::Strategic(&patch);
        let parameters = PatchParams::default();
        let patched = api.patch_status(&self.node, &parameters, &patch).await;
        patched.context("change the Node's status")?;
        Ok(true)
    }
}
