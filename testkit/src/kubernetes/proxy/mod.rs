//! A proxy between the agent and the API server that injects faults.
//!
//! It forwards every request with the token that it came with, so that the server's answers and rights
//! are the real ones. [`Rule`]s catch requests; watches that are open can be ended or frozen.

mod forward;
mod rules;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::{oneshot, watch};

pub use self::rules::{Does, Held, Kind, Request, Rule};
use crate::fabric::Netns;
use crate::fabric::eventually::eventually;

/// A request that came.
#[derive(Clone, Debug)]
pub struct Noted {
    /// When it came.
    pub at: Instant,
    /// The request.
    pub request: Request,
    /// The status code that the API server answered; `None` if the request was not forwarded.
    pub code: Option<u16>,
}

/// State of the open watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watches {
    /// Watches that began before the number changed end in the middle of a stream.
    ended: u64,
    /// Watches that began before the number changed stay open and send nothing more.
    frozen: u64,
}

/// State that the test and the proxy share.
struct Shared {
    client: Client,
    rules: Mutex<Vec<Rule>>,
    noted: Mutex<Vec<Noted>>,
    watches: watch::Sender<Watches>,
    /// True if the server must refuse unknown fields.
    is_strict: AtomicBool,
}

/// The proxy, on a thread of its own in the namespace. Dropping it ends every connection.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Proxy {
    /// Begins to serve, on the loopback device of a namespace.
    ///
    /// # Errors
    /// When it cannot start.
    pub fn start(netns: &Netns, server: &str, certificate: &Path) -> Result<Self> {
        let mut client = Config::new(server.parse()?);
        client.root_cert_file = Some(certificate.to_owned());
        // The agent must see every failure.
        client.default_retry = false;
        let (stop, stopped) = oneshot::channel();
        let (ready, begun) = oneshot::channel();
        let netns = Netns::foreign(&netns.path())?;
        let thread = thread::spawn(move || {
            let serve = || {
                let runtime = runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(serve(client, ready, stopped))
            };
            netns.enter(serve)
        });
        let Ok((shared, address)) = begun.blocking_recv() else {
            bail!("the proxy does not begin: {:?}", thread.join());
        };
        Ok(Self {
            shared,
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it serves.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a rule; the rule added last takes precedence.
    pub fn rule(&self, rule: Rule) {
        locked(&self.shared.rules).insert(0, rule);
    }

    /// Makes the server refuse every write with an unknown or a duplicate field.
    pub fn be_strict(&self) {
        self.shared.is_strict.store(true, Ordering::Relaxed);
    }

    /// Removes all rules. Requests that are held stay so.
    pub fn clear(&self) {
        locked(&self.shared.rules).clear();
    }

    /// Holds the next request of a kind, before or after it goes to the server.
    #[must_use]
    pub fn hold(&self, kind: Kind, is_forwarded: bool) -> Held {
        let (rule, held) = Held::rule(kind, is_forwarded);
        self.rule(rule);
        held
    }

    /// Ends every open watch in the middle of its stream, as a proxy that restarts does.
    pub fn end_watches(&self) {
        self.shared
            .watches
            .send_modify(|watches| watches.ended += 1);
    }

    /// Makes every open watch silent, as a connection whose other side is gone.
    pub fn freeze_watches(&self) {
        self.shared
            .watches
            .send_modify(|watches| watches.frozen += 1);
    }

    /// The requests that have come.
    #[must_use]
    pub fn requests(&self) -> Vec<Noted> {
        locked(&self.shared.noted).clone()
    }

    /// The writes among them.
    #[must_use]
    pub fn writes(&self) -> Vec<Noted> {
        let mut noted = self.requests();
        noted.retain(|noted| noted.request.is_write());
        noted
    }

    /// Waits until that many writes of a kind have come since a moment, and returns them.
    ///
    /// # Errors
    /// When they do not come.
    pub fn wait_for_writes(
        &self,
        kind: Kind,
        count: usize,
        since: Instant,
        deadline: Duration,
    ) -> Result<Vec<Noted>> {
        let what = format!("{count} writes of kind {kind:?}");
        let look = || {
            let mut writes = self.writes();
            writes.retain(|write| write.at >= since && write.request.is(kind));
            if writes.len() >= count {
                return Ok(writes);
            }
            Err(anyhow!("{writes:?}"))
        };
        Ok(eventually(deadline, &what, look)?.0)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The test has already seen the effect of a fault.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn note(&self, request: &Request, code: Option<u16>) {
        locked(&self.noted).push(Noted {
            at: Instant::now(),
            request: request.clone(),
            code,
        });
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    client: Config,
    ready: oneshot::Sender<(Arc<Shared>, SocketAddr)>,
    stopped: oneshot::Receiver<()>,
) -> Result<()> {
    let shared = Arc::new(Shared {
        client: Client::try_from(client)?,
        rules: Mutex::default(),
        noted: Mutex::default(),
        watches: watch::Sender::default(),
        is_strict: AtomicBool::new(false),
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let begun = ready.send((Arc::clone(&shared), address));
    begun.map_err(|_nobody| anyhow!("nobody waits for the proxy"))?;
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await?;
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let answer = |request| forward::answer(&shared, request);
                let connection = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer));
                // Rules make connections end with an error.
                connection.await.ok();
            });
        }
    };
    tokio::select! {
        failed = accept => failed,
        // Open connections go with the runtime.
        _ended = stopped => Ok(()),
    }
}
