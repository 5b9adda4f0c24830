//! Probes and metrics by HTTP, for the tools of a cluster.
//!
//! The endpoint is unauthenticated and read-only.

mod metrics;
mod text;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::join_all;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::text::Exposed;
use crate::server::connections;
use crate::server::connections::{Connections, Times};
use crate::server::{Command, Handle};
use config::{HttpSection, MetricsSection};

/// Connections at a time. Beyond, an idle or slow one is evicted for the next.
const CONNECTIONS: usize = 128;
/// The limits of time of a connection.
const TIMES: Times = Times {
    head: Duration::from_secs(1),
    whole: Duration::from_secs(15),
};
/// The wait before the next try where no connection can be accepted.
const PAUSE: Duration = Duration::from_millis(20);
/// The time for any answer, after which the agent counts as stuck.
const LIFE: Duration = Duration::from_secs(10);
/// The content type of the text.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The bound addresses, each with the paths that it serves.
#[derive(Debug)]
pub(crate) struct Exposition(Vec<(TcpListener, Paths)>);

/// The paths that an address serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paths {
    /// Probes and metrics.
    All,
    /// Metrics alone: it may be open to a network.
    Metrics,
}

#[derive(Clone)]
struct Context {
    agent: Handle,
    /// Its holder requests figures from the agent: one at a time.
    turn: Arc<Mutex<()>>,
}

impl Exposition {
    /// Binds the addresses.
    ///
    /// # Errors
    /// When one cannot be bound.
    pub(crate) async fn bind(http: &HttpSection, metrics: &MetricsSection) -> Result<Self> {
        let mut bound = Vec::new();
        for (key, address, paths) in [
            ("http", http.address, Paths::All),
            ("metrics", metrics.address, Paths::Metrics),
        ] {
            let Some(address) = address else { continue };
            let place = || format!("{key}.address: listen at {address}");
            let listener = TcpListener::bind(address).await.with_context(place)?;
            connections::lengthen_queue(&listener).with_context(place)?;
            bound.push((listener, paths));
        }
        Ok(Self(bound))
    }

    /// Serves until the future is dropped.
    pub(crate) async fn serve(self, agent: Handle) {
        let context = Context {
            agent,
            turn: Arc::default(),
        };
        let all = self.0.into_iter();
        let all = all.map(|(listener, paths)| listen(listener, paths.router(context.clone())));
        join_all(all).await;
        // Without an address nothing is served.
        std::future::pending::<()>().await;
    }
}

impl Paths {
    fn router(self, context: Context) -> Router {
        let metrics = Router::new().route("/metrics", get(metrics));
        let router = match self {
            Self::Metrics => metrics,
            Self::All => metrics
                .route("/healthz", get(health))
                .route("/readyz", get(readiness)),
        };
        router.with_state(context)
    }
}

async fn listen(listener: TcpListener, router: Router) {
    let connections = Connections::new(CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let slot = connections.admit(peer.ip()).await;
                tokio::spawn(connections::serve(slot, stream, router.clone(), TIMES));
            }
            Err(error) => {
                // Out of file descriptors, most likely: asking again at once would spin.
                tracing::warn!(%error, "a connection could not be accepted");
                connections.evict();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Answers whether the agent lives. What a restart would not mend fails no probe, and is named.
async fn health(State(context): State<Context>) -> Response {
    match life(&context.agent, LIFE).await {
        Some(problems) => {
            let lines = problems.into_iter().map(|problem| format!("{problem}\n"));
            let lines: String = lines.collect();
            format!("ok\n{lines}").into_response()
        }
        None => refusal(&format!("no answer within {LIFE:?}")),
    }
}

/// The problems of an agent that answers in time; `None` for one that does not.
async fn life(agent: &Handle, limit: Duration) -> Option<Vec<String>> {
    let answer = timeout(limit, agent.ask(Command::Alive)).await.ok()?;
    // One that is stopping need not be killed.
    Some(answer.unwrap_or_default())
}

/// True if the node takes pods, as far as addresses are left, and why not.
async fn readiness(State(context): State<Context>) -> Response {
    match context.agent.ask(Command::Ready).await {
        Ok(()) => "ready\n".into_response(),
        Err(error) => refusal(&error.message),
    }
}

async fn metrics(State(context): State<Context>) -> Response {
    let _turn = context.turn.lock().await;
    match context.agent.ask(Command::MetricsSnapshot).await {
        Ok(figures) => {
            let exposed = Exposed {
                metrics: metrics::metrics(&figures),
                durations: context.agent.durations().clone(),
            };
            let text = exposed.text();
            ([(CONTENT_TYPE, FORMAT)], text).into_response()
        }
        Err(error) => refusal(&error.message),
    }
}

fn refusal(reason: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn an_agent_that_does_not_answer_is_not_alive() {
        assert!(LIFE < Handle::REPLY_TIMEOUT);
        let limit = Duration::from_millis(50);
        let (agent, commands) = Handle::new(Handle::REPLY_TIMEOUT);
        // Its commands pile up.
        assert_eq!(life(&agent, limit).await, None);
        drop(commands);
        assert_eq!(life(&agent, limit).await, Some(Vec::new()));
    }

    /// Callers that send nothing, or a part of a head, delay no other caller.
    #[tokio::test]
    async fn idle_callers_do_not_keep_probes_out() {
        let address = Some(([127, 0, 0, 1], 0).into());
        let http = HttpSection { address };
        let exposition = Exposition::bind(&http, &MetricsSection::default()).await;
        let exposition = exposition.unwrap();
        let address = exposition.0[0].0.local_addr().unwrap();
        let (agent, mut commands) = Handle::new(Handle::REPLY_TIMEOUT);
        let answers = async {
            while let Some(command) = commands.recv().await {
                if let Command::Alive(reply) = command {
                    reply.send(Ok(Vec::new())).unwrap();
                }
            }
        };
        let probe = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            for count in [64, 300, 3000] {
                let mut idle = Vec::with_capacity(count);
                for part in (0..count).map(|i| [&b""[..], b"GET /he"][i % 2]) {
                    let mut stream = TcpStream::connect(address).unwrap();
                    // The server may have closed it for the next one by now.
                    stream.write_all(part).ok();
                    idle.push(stream);
                }
                let start = Instant::now();
                let mut stream = TcpStream::connect(address).unwrap();
                let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
                stream.write_all(request).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert!(answer.starts_with("HTTP/1.1 200"), "{count}: {answer}");
                let took = start.elapsed();
                // A second where nothing else runs; the tests beside this one take their share.
                assert!(took < Duration::from_secs(3), "{count}: {took:?}");
            }
            // A connection that the kernel has dropped is tried again after a second.
            let took = start.elapsed();
            assert!(took < Duration::from_secs(9), "{took:?}");
        });
        tokio::select! {
            () = exposition.serve(agent) => {}
            () = answers => {}
            probed = probe => probed.unwrap(),
        }
    }
}
