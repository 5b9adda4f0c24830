//! Errors of the interface.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Error code, for programs. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// The body is not JSON, is cut short, or has the wrong shape.
    InvalidBody,
    /// A field has a value that is not allowed.
    InvalidField,
    /// The caller is not root.
    PeerNotRoot,
    /// No such path.
    NotFound,
    /// The path has a version that this agent does not speak, or none.
    UnknownVersion,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The request did not arrive in time.
    Timeout,
    /// The owner has an endpoint with other addresses or another namespace.
    OwnerConflict,
    /// The container has an endpoint by another interface.
    SecondInterface,
    /// Another endpoint has the address.
    AddressInUse,
    /// The address is on a device of the host.
    AddressOfHost,
    /// The body is larger than allowed.
    BodyTooLarge,
    /// No ENI of the node owns the address.
    AddressNotOwned,
    /// The ENI that owns the address is not for pods.
    EniExcluded,
    /// The ENI that owns the address is not ready.
    EniNotReady,
    /// The request is valid, but the kernel could not be brought to it.
    SetUpFailed,
    /// The node has no such pool, or none of that family.
    PoolUnknown,
    /// The pool has no address left.
    PoolExhausted,
    /// The pool has addresses, and none of them can be given now.
    PoolNotReady,
    /// The address was released a moment ago.
    AddressCoolingDown,
    /// The owner has no endpoint.
    UnknownEndpoint,
    /// The owner has no addresses.
    UnknownLease,
    /// The owner's endpoint has the addresses.
    EndpointExists,
    /// The agent has no complete picture of the node yet, or is stopping.
    NotReady,
    /// The state folder cannot be written: its disk is full, read-only or broken.
    StateNotWritten,
    /// A fault of the agent.
    Internal,
    /// A code of a later agent.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// True if the same request can succeed later without a change to it, where only the code is
    /// known.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        match self {
            Self::Timeout
            | Self::EniNotReady
            | Self::PoolExhausted
            | Self::PoolNotReady
            | Self::AddressCoolingDown
            | Self::AddressInUse
            | Self::StateNotWritten
            | Self::NotReady => true,
            Self::InvalidBody
            | Self::InvalidField
            | Self::PeerNotRoot
            | Self::NotFound
            | Self::UnknownVersion
            | Self::MethodNotAllowed
            | Self::OwnerConflict
            | Self::SecondInterface
            | Self::AddressOfHost
            | Self::BodyTooLarge
            | Self::AddressNotOwned
            | Self::EniExcluded
            | Self::SetUpFailed
            | Self::PoolUnknown
            | Self::UnknownEndpoint
            | Self::UnknownLease
            | Self::EndpointExists
            | Self::Internal
            | Self::Unknown => false,
        }
    }
}

/// An error as the interface answers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    /// Error code, for programs.
    pub code: ErrorCode,
    /// Error text, for people: the value, and the expected ones.
    pub message: String,
    /// The field of the request that caused the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// True if a later retry can succeed.
    #[serde(default)]
    pub retry: bool,
}

impl ApiError {
    /// An error that no single field is to blame for.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            field: None,
            retry: code.is_temporary(),
        }
    }

    /// This error, marked as one that a later retry can cure, or not.
    #[must_use]
    pub fn temporary(self, retry: bool) -> Self {
        Self { retry, ..self }
    }

    /// This error, with the field that caused it.
    #[must_use]
    pub fn at(self, field: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..self
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for ApiError {}

/// The body of an answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ErrorBody {
    /// The error.
    pub error: ApiError,
    /// The versions that the agent speaks, where the path was not understood.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supported_versions: Vec<String>,
}
