//! How a command fails, and the exit code that says so.

use std::fmt;
use std::process::ExitCode;

use crate::api::ClientError;

/// The exit code of `status` when not everything is ready.
pub(super) const NOT_READY: u8 = 4;

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// No agent answers.
    Unreachable(ClientError),
    /// Anything else.
    Other(anyhow::Error),
}

impl Failure {
    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Other(_) => 1,
            // 2 is clap's, for a wrong command line.
            Self::Unreachable(_) => 3,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => {
                write!(f, "{error}; is `towpath run` running, and are you root?")
            }
            Self::Other(error) => write!(f, "{error:#}"),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Unreachable { .. } | ClientError::Timeout(_) => Self::Unreachable(error),
            ClientError::Refused(_) | ClientError::Protocol(_) => Self::Other(error.into()),
        }
    }
}
