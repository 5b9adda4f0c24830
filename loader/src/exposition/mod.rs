//! What a cluster's tools read by HTTP: whether the agent lives, whether it is ready, its metrics.
//!
//! Nobody is asked who he is, and nothing can be changed.

mod metrics;
mod text;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use crate::api::{Command, Handle};

/// Connections at a time; more wait in the socket's backlog.
const CONNECTIONS: usize = 8;
/// How long the request's head may take.
const HEAD: Duration = Duration::from_secs(5);
/// How long a connection may last.
const CONNECTION: Duration = Duration::from_secs(15);
/// How long the agent may take to answer anything at all before it counts as stuck.
const LIFE: Duration = Duration::from_secs(10);
/// What Prometheus takes the text for.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The bound address; none where nobody is to ask.
#[derive(Debug)]
pub(crate) struct Exposition(Option<TcpListener>);

#[derive(Clone)]
struct Context {
    agent: Handle,
    /// Who has it asks the agent for figures: one at a time.
    turn: Arc<Mutex<()>>,
}

impl Exposition {
    /// Binds the address.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub(crate) async fn bind(address: Option<SocketAddr>) -> Result<Self> {
        let Some(address) = address else {
            return Ok(Self(None));
        };
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("http.address: listen at {address}"))?;
        Ok(Self(Some(listener)))
    }

    /// Serves until the future is dropped.
    pub(crate) async fn serve(self, agent: Handle) {
        let Some(listener) = self.0 else {
            return std::future::pending().await;
        };
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let context = Context {
            agent,
            turn: Arc::default(),
        };
        let router = Router::new()
            .route("/healthz", get(health))
            .route("/readyz", get(readiness))
            .route("/metrics", get(metrics))
            .with_state(context);
        while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let router = router.clone();
                    tokio::spawn(async move {
                        timeout(CONNECTION, serve(stream, router)).await.ok();
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: asking again at once would spin.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn serve(stream: TcpStream, router: Router) {
    let served = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Whether the agent answers.
async fn health(State(context): State<Context>) -> Response {
    if is_alive(&context.agent, LIFE).await {
        "ok\n".into_response()
    } else {
        refusal(&format!("no answer within {LIFE:?}"))
    }
}

async fn is_alive(agent: &Handle, limit: Duration) -> bool {
    // What it answers is for readiness.
    timeout(limit, agent.ask(Command::Ready)).await.is_ok()
}

/// Whether a pod can be added, and why not.
async fn readiness(State(context): State<Context>) -> Response {
    match context.agent.ask(Command::Ready).await {
        Ok(()) => "ready\n".into_response(),
        Err(error) => refusal(&error.message),
    }
}

async fn metrics(State(context): State<Context>) -> Response {
    let _turn = context.turn.lock().await;
    match context.agent.ask(Command::Figures).await {
        Ok(figures) => {
            let text = text::text(&metrics::metrics(&figures));
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
    use super::*;

    #[tokio::test]
    async fn an_agent_that_does_not_answer_is_not_alive() {
        assert!(LIFE < Handle::PATIENCE);
        let limit = Duration::from_millis(50);
        let (agent, commands) = Handle::new(Handle::PATIENCE);
        // Its commands pile up.
        assert!(!is_alive(&agent, limit).await);
        // One that is stopping need not be killed.
        drop(commands);
        assert!(is_alive(&agent, limit).await);
    }
}
