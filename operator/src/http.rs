//! HTTP: probes, metrics, and what the command line shows.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::extract::{Path, State as Given};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use ec2::Ec2;
use fleet::{Fleet, Moment};
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::metrics;
use crate::run::{Health, Inbox};

/// The media type of metrics
/// (<https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>).
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All that answers come from.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) inbox: Inbox,
    pub(crate) health: Health,
    pub(crate) ec2: Arc<dyn Ec2>,
    pub(crate) standing: watch::Receiver<fleet::Standing>,
}

/// Listens at the configured addresses. The tasks end with the set.
///
/// # Errors
/// When an address cannot be listened at.
pub(crate) async fn serve(
    config: &Config,
    state: State,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<()> {
    let metrics = Router::new().route("/metrics", get(show_metrics));
    let all = metrics
        .clone()
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .route("/v1/nodes", get(nodes))
        .route("/v1/nodes/{name}", get(why))
        .route("/v1/subnets", get(subnets))
        .route("/v1/pools", get(pools))
        .route("/v1/budget", get(budget))
        .route("/v1/leaks", get(leaks));
    let address = config.http.address;
    listen(
        "http.address",
        address,
        all.with_state(state.clone()),
        tasks,
    )
    .await?;
    if let Some(address) = config.metrics.address {
        let metrics = metrics.with_state(state);
        listen("metrics.address", address, metrics, tasks).await?;
    }
    Ok(())
}

async fn listen(
    setting: &str,
    address: SocketAddr,
    router: Router,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<()> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("{setting}: listen at {address}"))?;
    tasks.spawn(async move {
        let served = axum::serve(listener, router).await;
        served.context("serve HTTP")
    });
    Ok(())
}

async fn health(Given(state): Given<State>) -> Response {
    probed(state.health.fault())
}

async fn readiness(Given(state): Given<State>) -> Response {
    probed(state.health.unready())
}

/// The answer to a probe, which fails for a reason.
fn probed(fault: Option<String>) -> Response {
    match fault {
        None => "ok\n".into_response(),
        Some(fault) => (StatusCode::SERVICE_UNAVAILABLE, format!("{fault}\n")).into_response(),
    }
}

async fn nodes(Given(state): Given<State>) -> Response {
    look(&state, Fleet::nodes).await
}

async fn why(Given(state): Given<State>, Path(name): Path<String>) -> Response {
    if let Some(refusal) = follows(&state) {
        return refusal;
    }
    let wanted = name.clone();
    match state
        .inbox
        .look(move |fleet, at| fleet.why(&wanted, at))
        .await
    {
        Some(Some(node)) => Json(node).into_response(),
        Some(None) => {
            let message = format!("there is no CiliumNode {name:?}");
            refused(StatusCode::NOT_FOUND, &message)
        }
        None => ending(),
    }
}

async fn subnets(Given(state): Given<State>) -> Response {
    look(&state, Fleet::subnets).await
}

async fn pools(Given(state): Given<State>) -> Response {
    look(&state, Fleet::pools).await
}

async fn budget(Given(state): Given<State>) -> Response {
    look(&state, Fleet::budgets).await
}

async fn leaks(Given(state): Given<State>) -> Response {
    look(&state, |fleet, _| fleet.leaks()).await
}

async fn show_metrics(Given(state): Given<State>) -> Response {
    let is_leader = matches!(*state.standing.borrow(), fleet::Standing::Leading { .. });
    let calls = state.ec2.meter().counts();
    let snapshot = state.inbox.look(move |fleet, at| metrics::Snapshot {
        is_leader,
        calls,
        nodes: fleet.nodes(at),
        subnets: fleet.subnets(at),
        pools: fleet.pools(at),
        release: fleet.releases(),
        budgets: fleet.budgets(at),
        leaks: fleet.leaks().len(),
        without_node: fleet.without_node(),
    });
    match snapshot.await {
        Some(snapshot) => ([(CONTENT_TYPE, METRICS)], metrics::text(snapshot)).into_response(),
        None => ending(),
    }
}

/// Answers with a value of the fleet. An operator that follows has none to show.
async fn look<T: Serialize + Send + 'static>(
    state: &State,
    look: impl FnOnce(&Fleet, Moment) -> T + Send + 'static,
) -> Response {
    if let Some(refusal) = follows(state) {
        return refusal;
    }
    match state.inbox.look(look).await {
        Some(value) => Json(value).into_response(),
        None => ending(),
    }
}

/// The refusal of an operator that follows.
fn follows(state: &State) -> Option<Response> {
    let follows = *state.standing.borrow() == fleet::Standing::Following;
    let message = "another operator leads: ask its pod, the holder of the Lease";
    follows.then(|| refused(StatusCode::CONFLICT, message))
}

fn ending() -> Response {
    refused(
        StatusCode::SERVICE_UNAVAILABLE,
        "the operator is about to end",
    )
}

fn refused(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"message": message}))).into_response()
}
