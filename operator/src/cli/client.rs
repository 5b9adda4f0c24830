//! Requests to a running operator.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use http_body_util::{BodyExt as _, Empty};
use hyper::Uri;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// The time limit of an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// No operator answers.
#[derive(Debug, thiserror::Error)]
#[error(
    "no operator answers at {address}: {cause}; expected a running operator with this http.address"
)]
pub(super) struct Unreachable {
    address: SocketAddr,
    cause: String,
}

/// The body of a refusal.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

/// Reads a path of an operator.
///
/// # Errors
/// [`Unreachable`] when none answers in time, else the operator's refusal.
pub(super) async fn get<T: DeserializeOwned>(address: SocketAddr, path: &str) -> Result<T> {
    let unreachable = |cause: String| Unreachable { address, cause };
    let uri = Uri::builder()
        .scheme("http")
        .authority(address.to_string())
        .path_and_query(path)
        .build()
        .with_context(|| format!("{path:?} is no path of a URL"))?;
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = timeout(ANSWER, async {
        let answer = client.get(uri).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((status, body))
    });
    let answer = answer.await;
    let answer = answer.map_err(|_elapsed| unreachable(format!("no answer within {ANSWER:?}")))?;
    let (status, body) = answer.map_err(|error| unreachable(chain(error.as_ref())))?;
    if status.is_success() {
        return serde_json::from_slice(&body).context("read the operator's answer");
    }
    let refusal: Result<Refusal, _> = serde_json::from_slice(&body);
    Err(match refusal {
        Ok(Refusal { message }) => anyhow!("{message}"),
        Err(_unreadable) => anyhow!("the operator answers {status}"),
    })
}

/// An error with all its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
