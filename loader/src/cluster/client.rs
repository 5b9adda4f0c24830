//! The connection to the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Client, Config};

/// How long the server lets a watch live, in seconds: one that went stale unnoticed is replaced after
/// that.
pub(super) const WATCH: u32 = 240;
/// How long nothing at all may arrive: somewhat more than a watch lives.
const SILENCE: Duration = Duration::from_mins(5);
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// How all objects of a resource are followed.
pub(super) fn watching() -> watcher::Config {
    watcher::Config::default().timeout(WATCH)
}

/// A client with what a kubeconfig says, or else the pod's service account. It does not connect yet.
///
/// # Errors
/// When the kubeconfig cannot be used, or the agent is in no pod.
pub(super) async fn connect(kubeconfig: Option<&Path>) -> Result<Client> {
    let mut config = match kubeconfig {
        Some(path) => {
            let place = || format!("kubernetes.kubeconfig: {}", path.display());
            let kubeconfig = Kubeconfig::read_from(path).with_context(place)?;
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            config.with_context(place)?
        }
        None => Config::incluster().context(
            "kubernetes.kubeconfig is null, and the agent is in no pod with a service account",
        )?,
    };
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    Client::try_from(config).context("the connection to the API server cannot be made")
}
