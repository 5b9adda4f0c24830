//! The paths that are about addresses.

use api::VERSION;
use api::ids::Owner;
use api::types::AskAddresses;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{delete, get, post};
use hyper::StatusCode;
use serde_json::json;

use super::body;
use super::handle::{AddressCommand, Command, Reply};
use super::refusal::Refusal;
use super::routes::{Context, InPath, owner_in, read};
use super::validate::AddressRequest;

/// The paths.
pub(super) fn router() -> Router<Context> {
    let v1 = |path: &str| format!("/{VERSION}/{path}");
    Router::new()
        .route(
            &v1("addresses"),
            get(|state| read(state, |reply| about(AddressCommand::List(reply)))).put(lease),
        )
        .route(&v1("addresses/{container_id}/{interface}"), delete(release))
        .route(
            &v1("addresses/{container_id}/{interface}/claim"),
            post(claim),
        )
        .route(
            &v1("pools"),
            get(|state| read(state, |reply| about(AddressCommand::Pools(reply)))),
        )
}

fn about(command: AddressCommand) -> Command {
    Command::Addresses(command)
}

async fn lease(context: State<Context>, body: Body) -> Result<Response, Refusal> {
    let request: AskAddresses = body::read(body, context.body_time).await?;
    let request = AddressRequest::try_from(request)?;
    read(context, |reply| {
        about(AddressCommand::Lease(request, reply))
    })
    .await
}

async fn claim(context: State<Context>, owner: InPath) -> Result<Response, Refusal> {
    of_owner(context, owner, AddressCommand::Claim).await
}

async fn release(context: State<Context>, owner: InPath) -> Result<Response, Refusal> {
    of_owner(context, owner, AddressCommand::Release).await
}

/// Does something with what an owner has; there is nothing to answer but that it is done.
async fn of_owner(
    State(context): State<Context>,
    owner: InPath,
    command: impl FnOnce(Owner, Reply<()>) -> AddressCommand,
) -> Result<Response, Refusal> {
    let owner = owner_in(owner)?;
    context
        .handle
        .ask(|reply| about(command(owner, reply)))
        .await?;
    Ok(body::answer(StatusCode::OK, &json!({})))
}
