//! Errors as EC2 answers them.

/// An error of EC2: a code that callers decide by, and a message for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Failure {
    /// The code, such as `IncorrectState`.
    pub code: String,
    /// The message.
    pub message: String,
}

impl Failure {
    /// An error of a code.
    #[must_use]
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
        }
    }

    /// The error of a value that no request may have.
    #[must_use]
    pub fn value(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterValue", message)
    }

    /// The error of parameters that exclude each other.
    #[must_use]
    pub fn combination(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterCombination", message)
    }

    /// The status of the HTTP answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self.code.as_str() {
            "RequestLimitExceeded" | "Unavailable" | "ServiceUnavailable" => 503,
            "InternalError" | "InternalFailure" => 500,
            "DryRunOperation" => 412,
            "UnauthorizedOperation" | "MissingAuthenticationToken" | "SignatureDoesNotMatch" => 403,
            "AuthFailure" => 401,
            _ => 400,
        }
    }
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Failure>;
