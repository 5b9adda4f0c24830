//! The failure of a command, and its exit code.

use std::fmt;
use std::process::ExitCode;

use api::ClientError;

/// The exit code of `status` when not everything is ready.
pub(super) const NOT_READY: u8 = 4;

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// No agent answers.
    Unreachable(ClientError),
    /// A process accepts, but does not answer.
    Silent(ClientError),
    /// Anything else.
    Other(anyhow::Error),
}

impl Failure {
    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Other(_) => 1,
            // 2 is clap's, for a wrong command line.
            Self::Unreachable(_) | Self::Silent(_) => 3,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => {
                write!(f, "{error}; is `towpath run` running, and are you root?")
            }
            Self::Silent(error) => write!(f, "{error}"),
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
            ClientError::Unreachable { .. } => Self::Unreachable(error),
            ClientError::Silent { .. } => Self::Silent(error),
            ClientError::Refused(_) | ClientError::Protocol(_) => Self::Other(error.into()),
        }
    }
}
