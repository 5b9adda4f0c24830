//! The connection to the API server.

pub(super) mod no_proxy;
pub(super) mod proxy;
pub(super) mod refused;
pub(super) mod retry_after;
pub mod traffic;
pub(super) mod tunnel;

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

use self::proxy::Proxy;
use super::cause;
use super::lists::{self, Lists};

/// The time that a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// The time that a request may take that is no watch.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A client, and how it follows resources.
#[derive(Clone)]
pub struct Connection {
    /// The client. It does not retry: the caller decides when to ask again.
    pub client: Client,
    /// Initial lists of followed objects.
    pub lists: Lists,
    /// The server, for records of what it answered.
    pub server: Server,
    /// Lifetime of a watch, in seconds.
    watch: u32,
}

/// An API server, as it is known before its first answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its URL.
    pub url: String,
    /// The root certificates (DER) that it is trusted by. Empty stands for those of the machine.
    pub roots: Vec<Vec<u8>>,
}

impl Connection {
    /// Configuration of every watch.
    #[must_use]
    pub fn watching(&self) -> watcher::Config {
        watcher::Config::default().timeout(self.watch)
    }
}

/// Waits for the answer to a request, at most [`REPLY_TIMEOUT`]: a server may take one and never
/// answer.
///
/// # Errors
/// Those of the request, and when it takes too long.
pub async fn in_time<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    within(REPLY_TIMEOUT, request).await
}

/// Waits for the answer to a request for a time.
///
/// # Errors
/// Those of the request, and when it takes too long.
pub async fn within<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> kube::Result<T> {
    let late = |_elapsed| {
        let text = format!("no answer within {limit:?}");
        kube::Error::Service(text.into())
    };
    timeout(limit, request).await.map_err(late)?
}

/// Address of an API server, and the credentials for it.
#[derive(Debug)]
pub struct Access {
    config: Config,
    proxy: Option<Proxy>,
}

impl From<Config> for Access {
    /// Reaches the server directly.
    fn from(config: Config) -> Self {
        Self {
            config,
            proxy: None,
        }
    }
}

impl Access {
    /// Reads a kubeconfig. Only a kubeconfig can name a proxy.
    ///
    /// # Errors
    /// When the file cannot be read or used.
    pub async fn from_kubeconfig(path: &Path) -> Result<Self> {
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
        Ok(Self { config, proxy })
    }

    /// Reads the service account of the pod that the process runs in.
    ///
    /// # Errors
    /// When the process is in no pod with a service account.
    pub fn from_service_account() -> Result<Self> {
        Ok(Config::incluster()?.into())
    }

    /// Makes the client. It does not connect yet. The server lets a watch live for `watch`, which
    /// counts in whole seconds.
    ///
    /// # Errors
    /// When credentials or certificates cannot be used.
    pub fn connect(self, watch: Duration) -> Result<Connection> {
        let Self { mut config, proxy } = self;
        config.connect_timeout = Some(CONNECT);
        // A watch that is silent for somewhat longer than its lifetime has gone stale.
        config.read_timeout = Some(watch + watch / 4);
        // The caller decides on the next request, and gets the wait that the server wants.
        config.default_retry = false;
        let url = config.cluster_url.to_string();
        let server = Server {
            url: url.clone(),
            roots: config.root_cert.clone().unwrap_or_default(),
        };
        let (unanswered, refusing) = (url.clone(), Arc::<str>::from(url.as_str()));
        let builder = tunnel::builder(config, proxy);
        let builder = builder.context("the connection to the API server cannot be made")?;
        let builder = builder
            .with_layer(&AndThenLayer::new(retry_after::with_wait))
            .with_layer(&AndThenLayer::new(move |answer| {
                refused::named(Arc::clone(&refusing), answer)
            }))
            .with_layer(&MapRequestLayer::new(traffic::request))
            .with_layer(&MapRequestLayer::new(lists::newest))
            .with_layer(&MapResponseLayer::new(traffic::response))
            .with_layer(&MapErrLayer::new(move |error: BoxError| {
                cause::unanswered(&unanswered, &error)
            }));
        Ok(Connection {
            client: builder.build(),
            lists: Lists::of(url),
            server,
            watch: u32::try_from(watch.as_secs()).unwrap_or(u32::MAX),
        })
    }
}
