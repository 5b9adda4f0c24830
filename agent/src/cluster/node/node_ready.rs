//! Removal of the startup taint from the Node once the agent is ready, so that the Node takes pods.

use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver::client::REPLY_TIMEOUT;
use apiserver::retry::Retry;
use apiserver::{cause, objects};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kubernetes::node::node_ready;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::server::{Command, Handle};

/// Interval at which the agent is checked for readiness.
const ASK: Duration = Duration::from_secs(1);
/// Interval at which the Node is checked afterwards: it may have been recreated, with its taint.
const LOOK: Duration = Duration::from_mins(5);

/// The task.
pub(in crate::cluster) struct Arrival {
    pub(in crate::cluster) client: Client,
    /// The Node's name.
    pub(in crate::cluster) node: String,
    /// The key of the taint, if one has to be removed.
    pub(in crate::cluster) taint: Option<String>,
    /// The agent, for its readiness.
    pub(in crate::cluster) agent: Handle,
    /// The reason why the Node may still keep pods off.
    pub(in crate::cluster) trouble: watch::Sender<Option<String>>,
}

impl Arrival {
    /// Runs until no receiver is left.
    pub(in crate::cluster) async fn run(self) {
        let mut retry = Retry::default();
        while !self.trouble.is_closed() {
            if self.agent.ask(Command::Ready).await.is_err() {
                sleep(ASK).await;
                continue;
            }
            let looked = timeout(REPLY_TIMEOUT, self.look()).await;
            let looked = looked.context("the API server does not answer").flatten();
            let (trouble, wait) = match looked {
                Ok(()) => {
                    retry.succeeded();
                    (None, LOOK)
                }
                Err(error) => {
                    let wait = retry.failed(error.as_ref());
                    let node = &self.node;
                    let text = cause::chain(error.as_ref());
                    let trouble = format!("cannot remove the taint of Node {node}: {text}");
                    (Some(trouble), wait)
                }
            };
            self.trouble.send_if_modified(|known| {
                let changed = *known != trouble;
                if let Some(trouble) = trouble.as_ref().filter(|_| changed) {
                    tracing::warn!("{trouble}");
                }
                *known = trouble;
                changed
            });
            sleep(wait).await;
        }
    }

    async fn look(&self) -> Result<()> {
        let api = objects::kubernetes_nodes(&self.client);
        let node = objects::value(api.get(&self.node).await.context("read it")?)?;
        let parameters = PatchParams::default();
        let key = self.taint.as_deref();
        if let Some(key) = key
            && let Some(patch) = node_ready::without_taint(&node, key)
        {
            let patch = Patch::Merge(&patch);
            let patched = api.patch(&self.node, &parameters, &patch).await;
            patched.with_context(|| format!("take away its taint {key}"))?;
            tracing::info!(node = self.node, key, "removed the Node's taint");
        }
        let now = Timestamp::now().to_string();
        if let Some(patch) = node_ready::network_available(&node, &now) {
            let patch = Patch::Strategic(&patch);
            let patched = api.patch_status(&self.node, &parameters, &patch).await;
            patched.context("set its condition NetworkUnavailable")?;
            tracing::info!(node = self.node, "the Node's network is available");
        }
        Ok(())
    }
}
