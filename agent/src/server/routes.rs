//! The paths of the interface.

use std::path::Path as FilePath;
use std::time::Duration;

use api::VERSION;
use api::ids::Owner;
use api::types::{AddEndpoint, FlowFilter, GcRequest};
use api::{ApiError, ErrorCode};
use api::{BadTuple, Tuple};
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::{Method, StatusCode, Uri};
use serde::Serialize;
use serde_json::json;

use super::body;
use super::durations::Change;
use super::handle::{Command, Handle, Reply};
use super::refusal::Refusal;
use super::validate::{EndpointRequest, check_collect, check_filter, check_flush, check_owner};

#[derive(Clone)]
pub(super) struct Context {
    pub(super) handle: Handle,
    pub(super) body_time: Duration,
    /// True if the caller's process is one of the agent's PID namespace.
    sees_caller: bool,
}

/// An owner, as it stands in a path.
pub(super) type InPath = Result<Path<(String, String)>, PathRejection>;

/// The interface's paths; a request body has `body_time` to arrive. `sees_caller` says whether a number
/// of a process means the same to the agent as to the caller.
pub(super) fn router(handle: Handle, body_time: Duration, sees_caller: bool) -> Router {
    let v1 = |path: &str| format!("/{VERSION}/{path}");
    Router::new()
        .route(
            &v1("endpoints"),
            get(|state| read(state, Command::Endpoints)).put(add_endpoint),
        )
        .route(
            &v1("endpoints/{container_id}/{interface}"),
            get(check_endpoint).delete(delete_endpoint),
        )
        .route(&v1("endpoints/gc"), post(collect))
        .route(&v1("ready"), get(ready))
        .merge(super::addresses::router())
        .route(&v1("enis"), get(|state| read(state, Command::Enis)))
        .route(&v1("routes"), get(|state| read(state, Command::Objects)))
        .route(&v1("status"), get(|state| read(state, Command::Status)))
        .route(
            &v1("masquerade"),
            get(|state| read(state, Command::Masquerade)),
        )
        .route(
            &v1("masquerade/explain/{protocol}/{source}/{destination}"),
            get(explain),
        )
        .route(&v1("metrics"), get(|state| read(state, Command::Metrics)))
        .route(
            &v1("nat/flows"),
            get(|state| {
                read(state, |reply| {
                    Command::NatFlows(FlowFilter::default(), reply)
                })
            })
            .post(nat_flows),
        )
        .route(&v1("nat/flush"), post(nat_flush))
        .route(
            &v1("nat/stats"),
            get(|state| read(state, Command::NatStats)),
        )
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Context {
            handle,
            body_time,
            sees_caller,
        })
}

pub(super) async fn read<T: Serialize>(
    State(context): State<Context>,
    command: impl FnOnce(Reply<T>) -> Command,
) -> Result<Response, Refusal> {
    let value = context.handle.ask(command).await?;
    Ok(body::answer(StatusCode::OK, &value))
}

async fn add_endpoint(State(context): State<Context>, body: Body) -> Result<Response, Refusal> {
    let request: AddEndpoint = body::read(body, context.body_time).await?;
    let request = EndpointRequest::try_from(request)?;
    if !context.sees_caller {
        check_is_no_process(&request.netns)?;
    }
    let handle = &context.handle;
    let answer = handle.ask(|reply| Command::AddEndpoint(request, reply));
    let attachment = handle.durations().time(Change::Add, answer).await?;
    Ok(body::answer(StatusCode::OK, &attachment))
}

/// Refuses a path to the namespace of a process that the agent does not see: for the agent the path
/// is that of another process, if of any.
fn check_is_no_process(netns: &FilePath) -> Result<(), ApiError> {
    let mut path = netns.to_owned();
    // As many links as the kernel follows (path_resolution(7)).
    for _ in 0..40 {
        if path.starts_with("/proc") {
            let message = format!(
                "{} names a process, and the agent runs in a pod without the host's PIDs; allowed: a \
                 file that the runtime makes (/run/netns/...), as containerd and CRI-O do, or `hostPID: \
                 true` in the agent's DaemonSet",
                netns.display()
            );
            return Err(ApiError::new(ErrorCode::InvalidField, message).at("netns"));
        }
        match path.read_link() {
            Ok(target) => path = path.parent().unwrap_or(FilePath::new("/")).join(target),
            Err(_no_link) => break,
        }
    }
    Ok(())
}

async fn delete_endpoint(
    State(context): State<Context>,
    owner: InPath,
) -> Result<Response, Refusal> {
    let owner = owner_in(owner)?;
    let handle = &context.handle;
    let answer = handle.ask(|reply| Command::DeleteEndpoint(owner, reply));
    handle.durations().time(Change::Delete, answer).await?;
    Ok(body::answer(StatusCode::OK, &json!({})))
}

async fn check_endpoint(context: State<Context>, owner: InPath) -> Result<Response, Refusal> {
    let owner = owner_in(owner)?;
    read(context, |reply| Command::CheckEndpoint(owner, reply)).await
}

async fn collect(context: State<Context>, body: Body) -> Result<Response, Refusal> {
    let request: GcRequest = body::read_up_to(body, context.body_time, body::MAX_LIST).await?;
    check_collect(&request)?;
    read(context, |reply| Command::Collect(request, reply)).await
}

async fn ready(State(context): State<Context>) -> Result<Response, Refusal> {
    context.handle.ask(Command::Ready).await?;
    Ok(body::answer(StatusCode::OK, &json!({"ready": true})))
}

/// The owner that a path names.
pub(super) fn owner_in(path: InPath) -> Result<Owner, ApiError> {
    let Path((container_id, interface)) =
        path.map_err(|error| ApiError::new(ErrorCode::InvalidField, error.body_text()).at("path"))?;
    let owner = Owner {
        container_id,
        interface,
    };
    check_owner(&owner, "")?;
    Ok(owner)
}

async fn explain(
    state: State<Context>,
    tuple: Result<Path<(String, String, String)>, PathRejection>,
) -> Result<Response, Refusal> {
    let Path((protocol, source, destination)) = tuple
        .map_err(|error| ApiError::new(ErrorCode::InvalidField, error.body_text()).at("path"))?;
    let bad = |error: BadTuple, field| {
        ApiError::new(ErrorCode::InvalidField, error.to_string()).at(field)
    };
    let protocol = protocol.parse().map_err(|error| bad(error, "protocol"))?;
    let source = source.parse().map_err(|error| bad(error, "source"))?;
    let to = destination.parse();
    let to = to.map_err(|error| bad(error, "destination"))?;
    let tuple = Tuple::new(protocol, source, to).map_err(|error| bad(error, "destination"))?;
    read(state, |reply| Command::Explain(tuple, reply)).await
}

async fn nat_flows(context: State<Context>, body: Body) -> Result<Response, Refusal> {
    let filter: FlowFilter = body::read(body, context.body_time).await?;
    check_filter(&filter)?;
    read(context, |reply| Command::NatFlows(filter, reply)).await
}

async fn nat_flush(context: State<Context>, body: Body) -> Result<Response, Refusal> {
    let filter: FlowFilter = body::read(body, context.body_time).await?;
    check_flush(&filter)?;
    read(context, |reply| Command::NatFlush(filter, reply)).await
}

async fn unknown_path(uri: Uri) -> Refusal {
    let path = uri.path();
    let version = path.split('/').nth(1).unwrap_or_default();
    let error = if version == VERSION {
        ApiError::new(ErrorCode::NotFound, format!("there is no {path}"))
    } else {
        ApiError::new(
            ErrorCode::UnknownVersion,
            format!("{path} does not begin with a version that this agent speaks: /{VERSION}/"),
        )
    };
    error.into()
}

async fn wrong_method(method: Method, uri: Uri) -> Refusal {
    ApiError::new(
        ErrorCode::MethodNotAllowed,
        format!("{method} is not a method of {}", uri.path()),
    )
    .into()
}

/// A service for a caller who may not ask anything.
pub(super) fn refusal(uid: u32) -> Router {
    let refuse = move || async move {
        Refusal::from(ApiError::new(
            ErrorCode::PeerNotRoot,
            format!("the caller's user id is {uid}; only root may use this socket"),
        ))
    };
    Router::new().fallback(refuse)
}
