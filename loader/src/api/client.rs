//! The interface, as its users call it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::VERSION;
use super::error::{ApiError, ErrorBody, ErrorCode};
use super::types::{
    AddEndpoint, Addresses, Attachment, EndpointStatus, EniStatus, Explanation, FlowFilter,
    MasqueradeStatus, Metric, NatFlows, NatFlushed, NatStats, PoolStatus, Status,
};
use crate::masquerade::Tuple;
use crate::types::Owner;
use crate::view::OwnedObject;

/// Longer than the agent takes to answer that it is busy.
const PATIENCE: Duration = Duration::from_secs(35);
/// Largest answer that is read, in bytes: some thousand times what a full node has to say.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no agent at the socket.
    #[error("no agent answers at {socket}: {source}")]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The agent refused.
    #[error("{0}")]
    Refused(ApiError),
    /// The agent's answer was not understood.
    #[error("the agent's answer was not understood: {0}")]
    Protocol(String),
    /// The agent did not answer in time.
    #[error("the agent did not answer within {0:?}")]
    Timeout(Duration),
}

/// Calls the agent at a socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// An answer as it came.
struct Answer {
    status: StatusCode,
    body: Bytes,
}

impl Client {
    /// A client of the agent at `socket`. Connects at each call.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Attaches a pod.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn add_endpoint(&self, request: &AddEndpoint) -> Result<Attachment, ClientError> {
        self.call(Method::PUT, "endpoints", json(request)?).await
    }

    /// Takes a pod's attachment away; an unknown owner is success.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_endpoint(&self, owner: &Owner) -> Result<(), ClientError> {
        let path = format!(
            "endpoints/{}/{}",
            percent_encode(&owner.container_id),
            percent_encode(&owner.interface)
        );
        let _empty: serde_json::Value = self.call(Method::DELETE, &path, Vec::new()).await?;
        Ok(())
    }

    /// The endpoints.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn endpoints(&self) -> Result<Vec<EndpointStatus>, ClientError> {
        self.call(Method::GET, "endpoints", Vec::new()).await
    }

    /// The ENIs.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn enis(&self) -> Result<Vec<EniStatus>, ClientError> {
        self.call(Method::GET, "enis", Vec::new()).await
    }

    /// What is ours in the kernel, beside what should be.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn objects(&self) -> Result<Vec<OwnedObject>, ClientError> {
        self.call(Method::GET, "routes", Vec::new()).await
    }

    /// The state of the whole.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.call(Method::GET, "status", Vec::new()).await
    }

    /// Whether pods can be added, or could be if there were addresses left.
    ///
    /// # Errors
    /// When they cannot; see [`ClientError`].
    pub async fn ready(&self) -> Result<(), ClientError> {
        match self.call(Method::GET, "ready", Vec::new()).await {
            Err(ClientError::Refused(refusal)) if refusal.code == ErrorCode::Exhausted => Ok(()),
            answer => answer.map(|_: serde_json::Value| ()),
        }
    }

    /// The pools.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pools(&self) -> Result<Vec<PoolStatus>, ClientError> {
        self.call(Method::GET, "pools", Vec::new()).await
    }

    /// Who has which address.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn addresses(&self) -> Result<Addresses, ClientError> {
        self.call(Method::GET, "addresses", Vec::new()).await
    }

    /// The datapath's counters.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn metrics(&self) -> Result<Vec<Metric>, ClientError> {
        self.call(Method::GET, "metrics", Vec::new()).await
    }

    /// What the masquerade decision looks at.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn masquerade(&self) -> Result<MasqueradeStatus, ClientError> {
        self.call(Method::GET, "masquerade", Vec::new()).await
    }

    /// What becomes of a pod's packet, by the live maps.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn explain(&self, tuple: &Tuple) -> Result<Explanation, ClientError> {
        let Tuple {
            protocol,
            source,
            destination,
        } = tuple;
        let parts = [
            protocol.to_string(),
            source.to_string(),
            destination.to_string(),
        ];
        let parts = parts.map(|part| percent_encode(&part));
        let path = format!("masquerade/explain/{}", parts.join("/"));
        self.call(Method::GET, &path, Vec::new()).await
    }

    /// The flows that a filter takes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn nat_flows(&self, filter: &FlowFilter) -> Result<NatFlows, ClientError> {
        self.call(Method::POST, "nat/flows", json(filter)?).await
    }

    /// Removes the flows that a filter takes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn nat_flush(&self, filter: &FlowFilter) -> Result<NatFlushed, ClientError> {
        self.call(Method::POST, "nat/flush", json(filter)?).await
    }

    /// What translation does.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn nat_stats(&self) -> Result<NatStats, ClientError> {
        self.call(Method::GET, "nat/stats", Vec::new()).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, ClientError> {
        let answer = tokio::time::timeout(PATIENCE, self.exchange(method, path, body))
            .await
            .map_err(|_elapsed| ClientError::Timeout(PATIENCE))??;
        if answer.status.is_success() {
            return serde_json::from_slice(&answer.body).map_err(|error| protocol(&error));
        }
        match serde_json::from_slice::<ErrorBody>(&answer.body) {
            Ok(body) => Err(ClientError::Refused(body.error)),
            Err(_not_ours) => Err(ClientError::Protocol(format!("status {}", answer.status))),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Answer, ClientError> {
        let stream =
            UnixStream::connect(&self.socket)
                .await
                .map_err(|source| ClientError::Unreachable {
                    socket: self.socket.clone(),
                    source,
                })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| protocol(&error))?;
        let request = Request::builder()
            .method(method)
            .uri(format!("/{VERSION}/{path}"))
            .header(hyper::header::HOST, "towpath")
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| protocol(&error))?;
        let exchange = async {
            let response = sender
                .send_request(request)
                .await
                .map_err(|error| protocol(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER)
                .collect()
                .await
                .map_err(|error| ClientError::Protocol(error.to_string()))?
                .to_bytes();
            Ok(Answer { status, body })
        };
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            // The agent answers and closes: what it said still has to be read.
            _ended = connection => exchange.await,
        }
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(value).map_err(|error| protocol(&error))
}

fn protocol(error: &impl ToString) -> ClientError {
    ClientError::Protocol(error.to_string())
}

/// Percent-encodes all but RFC 3986's unreserved characters, so that a wrong owner arrives as it
/// is and is named in the answer.
fn percent_encode(text: &str) -> String {
    use std::fmt::Write as _;

    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            write!(out, "%{byte:02X}").ok();
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded() {
        assert_eq!(percent_encode("a-b_c.0"), "a-b_c.0");
        assert_eq!(percent_encode("a/b c"), "a%2Fb%20c");
    }
}
