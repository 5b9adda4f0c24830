//! The node agent's interface for the plugin.

mod http;
pub mod wire;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::{Code, Failure};
use crate::fault_points::Exchange;
use crate::request::owner::Owner;
use wire::{
    Attachment, ErrorBody, GcRequest, GcResult, Inspection, Leased, Leases, Refusal, Request,
    Status,
};

/// Version of the socket's interface that the plugin speaks.
const VERSION: &str = "v1";

/// The agent at a socket.
#[derive(Clone, Debug)]
pub struct Agent {
    socket: PathBuf,
    patience: Duration,
}

/// Error of a request to the agent.
#[derive(Debug)]
pub enum CallError {
    /// No agent answers.
    Unreachable(PathBuf, io::Error),
    /// It did not answer in time.
    Timeout(Duration),
    /// Its answer was cut short or is not understood.
    Answer(String),
    /// It refused.
    Refused(Refusal),
    /// It speaks other versions.
    OtherVersion(Vec<String>),
}

impl Agent {
    /// The agent that listens at `socket`; each answer has `patience` to arrive.
    #[must_use]
    pub fn new(socket: PathBuf, patience: Duration) -> Self {
        Self { socket, patience }
    }

    /// This agent with at most this patience.
    #[must_use]
    pub fn hurried(&self, patience: Duration) -> Self {
        Self {
            socket: self.socket.clone(),
            patience: self.patience.min(patience),
        }
    }

    /// The time that an answer may take.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Attaches a pod.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn attach(&self, request: &Request<'_>) -> Result<Attachment, CallError> {
        self.put("endpoints", request)
    }

    /// Takes away what an owner has: endpoint and addresses. An unknown owner is success.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn detach(&self, owner: &Owner, what: Exchange) -> Result<(), CallError> {
        self.call_nothing("DELETE", &path("endpoints", owner), what)
    }

    /// Reads the state of an owner's endpoint in the kernel.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn inspect(&self, owner: &Owner) -> Result<Inspection, CallError> {
        self.call("GET", &path("endpoints", owner), None, Exchange::Look)
    }

    /// Removes what owners have that are not in the list. The owners that are the agent itself.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn collect(&self, network: &str, valid: &[Owner]) -> Result<Vec<Owner>, CallError> {
        let body = to_json(&GcRequest { network, valid })?;
        let answer = self.ask("POST", "endpoints/gc", Some(&body), Exchange::Collect)?;
        let collected: GcResult = serde_json::from_slice(&answer)
            .map_err(|error| CallError::Answer(error.to_string()))?;
        Ok(collected.agent)
    }

    /// Leases addresses without an endpoint.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn lease(&self, request: &Request<'_>) -> Result<Leased, CallError> {
        self.put("addresses", request)
    }

    /// Says that leased addresses are in use.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn claim(&self, owner: &Owner) -> Result<(), CallError> {
        let path = format!("{}/claim", path("addresses", owner));
        self.call_nothing("POST", &path, Exchange::Claim)
    }

    /// Gives leased addresses back.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn release(&self, owner: &Owner) -> Result<(), CallError> {
        self.call_nothing("DELETE", &path("addresses", owner), Exchange::Del)
    }

    /// All leases.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn leases(&self) -> Result<Leases, CallError> {
        self.call("GET", "addresses", None, Exchange::Look)
    }

    /// Checks that pods can be added.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the code `not-ready`; see [`CallError`].
    pub fn ready(&self) -> Result<(), CallError> {
        match self.call_nothing("GET", "ready", Exchange::Look) {
            Err(error) if error.is_unknown_path() => {
                let status: Status = self.call("GET", "status", None, Exchange::Look)?;
                if status.health.state != "not-ready" {
                    return Ok(());
                }
                Err(CallError::Refused(Refusal {
                    code: "not-ready".to_owned(),
                    message: status.health.reasons.join("; "),
                    field: None,
                    retry: true,
                }))
            }
            outcome => outcome,
        }
    }

    /// Success if the node has a network. A lack of addresses, for which earlier agents refuse, is
    /// no error.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the code `not-ready`; see [`CallError`].
    pub fn has_network(&self) -> Result<(), CallError> {
        match self.ready() {
            Err(CallError::Refused(refusal)) if refusal.code == "exhausted" => Ok(()),
            outcome => outcome,
        }
    }

    /// Requests a new object. If an agent does not know the fields that are only informative, the
    /// request is repeated without them.
    fn put<T: DeserializeOwned>(&self, path: &str, request: &Request<'_>) -> Result<T, CallError> {
        let ask =
            |request: &Request<'_>| self.call("PUT", path, Some(&to_json(request)?), Exchange::Add);
        match ask(request) {
            Err(CallError::Refused(refusal))
                if refusal.code == "invalid-body"
                    && (request.network.is_some() || request.pod.is_some()) =>
            {
                let plain = Request {
                    network: None,
                    pod: None,
                    ..request.clone()
                };
                // If the refusal was not about those fields, the first answer is the better one.
                match ask(&plain) {
                    Err(CallError::Refused(again)) if again.code == refusal.code => {
                        Err(CallError::Refused(refusal))
                    }
                    outcome => outcome,
                }
            }
            outcome => outcome,
        }
    }

    /// A call whose answer says nothing beyond success.
    fn call_nothing(&self, method: &str, path: &str, what: Exchange) -> Result<(), CallError> {
        self.ask(method, path, None, what).map(|_answer| ())
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        what: Exchange,
    ) -> Result<T, CallError> {
        let answer = self.ask(method, path, body, what)?;
        serde_json::from_slice(&answer).map_err(|error| CallError::Answer(error.to_string()))
    }

    /// The body of an answer that is a success.
    fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        what: Exchange,
    ) -> Result<Vec<u8>, CallError> {
        let path = format!("/{VERSION}/{path}");
        let request = http::Request {
            method,
            path: &path,
            body: body.unwrap_or_default(),
            kind: what,
        };
        let answer = http::exchange(&self.socket, request, self.patience);
        let answer = answer.map_err(|error| match error {
            http::Error::Connect(error) => CallError::Unreachable(self.socket.clone(), error),
            http::Error::Timeout => CallError::Timeout(self.patience),
            http::Error::Broken(reason) => CallError::Answer(reason),
        })?;
        if (200..300).contains(&answer.status) {
            return Ok(answer.body);
        }
        let body: ErrorBody = serde_json::from_slice(&answer.body)
            .map_err(|_other| CallError::Answer(format!("status {}", answer.status)))?;
        if body.error.code == "unknown-version" {
            return Err(CallError::OtherVersion(body.supported_versions));
        }
        Err(CallError::Refused(body.error))
    }
}

impl CallError {
    /// True if the agent could not take the request in hand, so that another one may later.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Unreachable(..) | Self::Timeout(_) | Self::Answer(_) | Self::OtherVersion(_) => {
                true
            }
            Self::Refused(refusal) => refusal.retry || refusal.code == "not-ready",
        }
    }

    /// True if the agent is too old to know the path.
    #[must_use]
    pub fn is_unknown_path(&self) -> bool {
        matches!(self, Self::Refused(refusal)
            if matches!(refusal.code.as_str(), "not-found" | "method-not-allowed"))
    }

    /// The code for the runtime. What may work later is code 11, by the agent's word or, for one
    /// that does not say, by its code.
    fn code(&self) -> Code {
        let refusal = match self {
            Self::Unreachable(..) | Self::Timeout(_) | Self::Answer(_) => {
                return Code::TryAgainLater;
            }
            Self::OtherVersion(_) => return Code::AgentVersion,
            Self::Refused(refusal) => refusal,
        };
        match refusal.code.as_str() {
            _ if refusal.retry => Code::TryAgainLater,
            "not-ready"
            | "restoring"
            | "exhausted"
            | "pool-exhausted"
            | "pool-not-ready"
            | "address-cooling-down"
            | "eni-not-ready"
            | "timeout" => Code::TryAgainLater,
            "unknown-endpoint" | "unknown-lease" => Code::UnknownContainer,
            "pool-unknown" | "second-interface" => Code::InvalidConfig,
            "invalid-field" => match refusal.field.as_deref() {
                Some("netns" | "owner" | "owner.container-id" | "owner.interface") => {
                    Code::InvalidEnvironment
                }
                _ => Code::InvalidConfig,
            },
            "address-in-use" | "address-of-host" | "address-not-owned" | "eni-excluded" => {
                Code::AddressRefused
            }
            "owner-conflict" | "endpoint-exists" => Code::OwnerConflict,
            "not-found" | "method-not-allowed" | "invalid-body" => Code::AgentVersion,
            _ => Code::Agent,
        }
    }

    /// The failure for the runtime, with the intended operation.
    #[must_use]
    pub fn into_failure(self, what: &str) -> Failure {
        let code = self.code();
        let message = match code {
            Code::TryAgainLater => format!("{what}: try again later"),
            Code::AgentVersion => format!("{what}: the agent is of another version"),
            _ => what.to_owned(),
        };
        Failure::new(code, message).with_details(self.to_string())
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(socket, error) => {
                write!(f, "no agent answers at {}: {error}", socket.display())
            }
            Self::Timeout(patience) => {
                let seconds = patience.as_secs();
                write!(f, "the agent did not answer within {seconds} s")
            }
            Self::Answer(reason) => write!(f, "the agent's answer was not understood: {reason}"),
            Self::OtherVersion(supported) => write!(
                f,
                "this plugin speaks {VERSION} of the agent's interface, the agent {}; install the \
                 plugin that came with the agent (towpath cni install)",
                match supported.as_slice() {
                    [] => "does not say what".to_owned(),
                    versions => versions.join(", "),
                }
            ),
            Self::Refused(Refusal {
                code,
                message,
                field,
                ..
            }) => match field {
                Some(field) => write!(f, "{field}: {message} ({code})"),
                None => write!(f, "{message} ({code})"),
            },
        }
    }
}

impl std::error::Error for CallError {}

fn path(of: &str, owner: &Owner) -> String {
    // A container id has no character that a path would need encoded; an interface may.
    let interface = owner.interface.bytes().map(|byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    format!(
        "{of}/{}/{}",
        owner.container_id,
        interface.collect::<String>()
    )
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>, CallError> {
    serde_json::to_vec(value).map_err(|error| CallError::Answer(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded() {
        let owner = Owner::new("a.b_c-0".into(), "net%1".into()).unwrap();
        assert_eq!(path("endpoints", &owner), "endpoints/a.b_c-0/net%251");
    }

    #[test]
    fn the_agents_word_decides_whether_to_try_again() {
        let refused = |code: &str, retry| {
            CallError::Refused(Refusal {
                code: code.to_owned(),
                message: "m".to_owned(),
                field: None,
                retry,
            })
        };
        for (error, code) in [
            (refused("pool-exhausted", true), 11),
            (refused("pool-exhausted", false), 11),
            (refused("of-a-later-agent", true), 11),
            (refused("of-a-later-agent", false), 104),
            (refused("pool-unknown", false), 7),
            (refused("pool-unknown", true), 11),
            (refused("unknown-endpoint", false), 3),
            (refused("address-in-use", false), 102),
            (refused("owner-conflict", false), 103),
            (CallError::OtherVersion(vec!["v2".into()]), 101),
            (CallError::Timeout(Duration::from_secs(1)), 11),
        ] {
            let text = error.to_string();
            assert_eq!(error.into_failure("x").code.number(), code, "{text}");
        }
    }
}
