//! The connection to the API server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Client, Config};
use tokio::time::timeout;
use tower::BoxError;
use tower::util::{AndThenLayer, MapErrLayer, MapRequestLayer, MapResponseLayer};

use super::lists::{self, Lists};
use super::proxy::{self, Proxy};
use super::{cause, refused, retry_after, traffic, tunnel};
use crate::config::{AbsolutePath, KubernetesSection};
use crate::kept::Server;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// A client, and how it follows things.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    /// How the objects come that are followed.
    pub(super) lists: Lists,
    /// The server, for records that are kept of it.
    pub(super) server: Server,
    /// For how many seconds the server lets a watch live.
    watch: u32,
}

impl Connection {
    /// One for tests.
    #[cfg(test)]
    pub(super) fn of(client: Client) -> Self {
        Self {
            client,
            lists: Lists::default(),
            server: Server::new("", &[]),
            watch: 240,
        }
    }

    /// How everything is watched.
    pub(super) fn watching(&self) -> watcher::Config {
        watcher::Config::default().timeout(self.watch)
    }
}

/// How long a request may take that is no watch.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for the answer to a request, but not for ever: a server may take one and never answer.
///
/// # Errors
/// Those of the request, and when it takes too long.
pub(super) async fn in_time<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let late = |_elapsed| {
        let text = format!("no answer within {PATIENCE:?}");
        kube::Error::Service(text.into())
    };
    timeout(PATIENCE, request).await.map_err(late)?
}

/// A client with what a kubeconfig says, or else the pod's service account. It does not connect yet.
///
/// # Errors
/// When the kubeconfig cannot be used, or the agent is in no pod.
pub(super) async fn connect(section: &KubernetesSection) -> Result<Connection> {
    let path = section.kubeconfig.as_ref().map(AbsolutePath::as_path);
    let (mut config, proxy) = if let Some(path) = path {
        let place = || format!("kubernetes.kubeconfig: {}", path.display());
        configured(path).await.with_context(place)?
    } else {
        let config = Config::incluster().context(
            "kubernetes.kubeconfig is null, and the agent is in no pod with a service account",
        )?;
        (config, None)
    };
    config.connect_timeout = Some(CONNECT);
    // A watch that says nothing at all for somewhat longer than it lives has gone stale.
    let watch = section.watch_timeout.get();
    config.read_timeout = Some(watch + watch / 4);
    // Whoever asks decides when to ask again, and is told how long the server wants it to wait.
    config.default_retry = false;
    let server = config.cluster_url.to_string();
    let roots = config.root_cert.clone().unwrap_or_default();
    let known = Server::new(&server, &roots);
    let (url, refusing) = (server.clone(), Arc::<str>::from(server.as_str()));
    let builder = tunnel::builder(config, proxy);
    let builder = builder.context("the connection to the API server cannot be made")?;
    let builder = builder
        .with_layer(&AndThenLayer::new(retry_after::told))
        .with_layer(&AndThenLayer::new(move |answer| {
            refused::named(Arc::clone(&refusing), answer)
        }))
        .with_layer(&MapRequestLayer::new(traffic::request))
        .with_layer(&MapRequestLayer::new(lists::newest))
        .with_layer(&MapResponseLayer::new(traffic::response))
        .with_layer(&MapErrLayer::new(move |error: BoxError| {
            cause::unanswered(&url, &error)
        }));
    Ok(Connection {
        client: builder.build(),
        lists: Lists::of(server),
        server: known,
        // The setting's bounds are narrower.
        watch: u32::try_from(watch.as_secs()).unwrap_or(u32::MAX),
    })
}

/// Reads a kubeconfig: how the API server is reached, and through which proxy.
async fn configured(path: &Path) -> Result<(Config, Option<Proxy>)> {
    let mut kubeconfig = Kubeconfig::read_from(path)?;
    let url = proxy::take(&mut kubeconfig);
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = None;
    if let Some(exec) = &mut config.auth_info.exec {
        proxy::restore(exec, url.as_ref());
    }
    let exceptions = proxy::exceptions();
    let proxy = proxy::choose(url.as_deref(), &config.cluster_url, &exceptions)?;
    Ok((config, proxy))
}
