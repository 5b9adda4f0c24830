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
use super::types::{
    AddEndpoint, Addresses, Attachment, EndpointStatus, EniStatus, Explanation, FlowFilter,
    MasqueradeStatus, Metric, NatFlows, NatFlushed, NatStats, PoolStatus, Status,
};
use crate::Listener;
use crate::Tuple;
use crate::ids::Owner;
use crate::types::OwnedObject;
use crate::{ApiError, ErrorBody};

/// Time limit for the answer to a read.
const FOR_READS: Duration = Duration::from_secs(3);
/// Time limit for a change: longer than the agent takes to answer that it is busy.
const FOR_CHANGES: Duration = Duration::from_secs(35);
/// Interval between attempts to connect while the agent's queue of connections is full.
const INTERVAL: Duration = Duration::from_millis(50);
/// Largest answer that is read, in bytes: some thousand times the answer of a full node.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no agent at the socket.
    #[error("no agent answers at {socket}: {source}")]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The agent refused.
    #[error("{0}")]
    Refused(ApiError),
    /// The agent's answer was not understood.
    #[error("the agent's answer was not understood: {0}")]
    Protocol(String),
    /// A process accepts connections at the socket, but does not answer in time.
    #[error("{}", silent(.socket, *.after, .listener.as_ref()))]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// Time that the client waited.
        after: Duration,
        /// The process, if it can be seen.
        listener: Option<Listener>,
    },
}

fn silent(socket: &Path, after: Duration, listener: Option<&Listener>) -> String {
    let listener = listener.map(|listener| format!(": {listener}"));
    format!(
        "the agent at {} accepts but does not answer within {after:?}{}; --timeout waits longer",
        socket.display(),
        listener.unwrap_or_default()
    )
}

/// Calls the agent at a socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    for_reads: Duration,
    for_changes: Duration,
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
            for_reads: FOR_READS,
            for_changes: FOR_CHANGES,
        }
    }

    /// A client that waits this long for each answer.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self {
            for_reads: timeout,
            for_changes: timeout,
            ..self
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
        self.call(Method::PUT, "endpoints", json(request)?, self.for_changes)
            .await
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
        let _empty: serde_json::Value = self
            .call(Method::DELETE, &path, Vec::new(), self.for_changes)
            .await?;
        Ok(())
    }

    /// The endpoints.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn endpoints(&self) -> Result<Vec<EndpointStatus>, ClientError> {
        self.read("endpoints").await
    }

    /// The ENIs.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn enis(&self) -> Result<Vec<EniStatus>, ClientError> {
        self.read("enis").await
    }

    /// Lists our objects in the kernel, compared with the desired ones.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn objects(&self) -> Result<Vec<OwnedObject>, ClientError> {
        self.read("routes").await
    }

    /// The state of the whole.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.read("status").await
    }

    /// True if the node takes pods, as far as addresses are left.
    ///
    /// # Errors
    /// When it does not; see [`ClientError`].
    pub async fn ready(&self) -> Result<(), ClientError> {
        let _true: serde_json::Value = self.read("ready").await?;
        Ok(())
    }

    /// The pools.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pools(&self) -> Result<Vec<PoolStatus>, ClientError> {
        self.read("pools").await
    }

    /// Lists the addresses and their owners.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn addresses(&self) -> Result<Addresses, ClientError> {
        self.read("addresses").await
    }

    /// The datapath's counters.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn metrics(&self) -> Result<Vec<Metric>, ClientError> {
        self.read("metrics").await
    }

    /// Reads the inputs of the masquerade decision.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn masquerade(&self) -> Result<MasqueradeStatus, ClientError> {
        self.read("masquerade").await
    }

    /// Traces a pod's packet through the live maps.
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
        self.read(&path).await
    }

    /// The flows that a filter takes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn nat_flows(&self, filter: &FlowFilter) -> Result<NatFlows, ClientError> {
        self.call(Method::POST, "nat/flows", json(filter)?, self.for_reads)
            .await
    }

    /// Removes the flows that a filter takes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn nat_flush(&self, filter: &FlowFilter) -> Result<NatFlushed, ClientError> {
        self.call(Method::POST, "nat/flush", json(filter)?, self.for_changes)
            .await
    }

    /// Reads statistics of translation.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn nat_stats(&self) -> Result<NatStats, ClientError> {
        self.read("nat/stats").await
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, Vec::new(), self.for_reads)
            .await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let mut listener = None;
        let exchange = async {
            let stream = self.connect().await?;
            listener = Listener::of(&stream);
            exchange(stream, method, path, body).await
        };
        let answer = tokio::time::timeout(patience, exchange).await;
        let answer = answer.map_err(|_elapsed| ClientError::Silent {
            socket: self.socket.clone(),
            after: patience,
            // As it is by now.
            listener: listener.map(|Listener { pid, .. }| Listener::of_pid(pid)),
        })??;
        if answer.status.is_success() {
            return serde_json::from_slice(&answer.body).map_err(|error| protocol(&error));
        }
        match serde_json::from_slice::<ErrorBody>(&answer.body) {
            Ok(body) => Err(ClientError::Refused(body.error)),
            Err(_not_ours) => Err(ClientError::Protocol(format!("status {}", answer.status))),
        }
    }

    /// Connects, as soon as the agent's queue has room.
    async fn connect(&self) -> Result<UnixStream, ClientError> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => return Ok(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(INTERVAL).await;
                }
                Err(source) => {
                    return Err(ClientError::Unreachable {
                        socket: self.socket.clone(),
                        source,
                    });
                }
            }
        }
    }
}

async fn exchange(
    stream: UnixStream,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> Result<Answer, ClientError> {
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
