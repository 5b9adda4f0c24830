//! Failures of the plugin: the specification's codes, and ours.

use std::fmt;

use serde_json::{Value, json};

use crate::spec::SpecVersion;

/// The failure, as a number for runtimes (CNI specification 1.1.0, section 5; from 100 on ours,
/// listed in `docs/guide/cni.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The configuration asks for a version of the specification that the plugin does not have.
    IncompatibleVersion,
    /// A field of the configuration has a value that is understood and not supported.
    UnsupportedField,
    /// The container is not known.
    UnknownContainer,
    /// An environment variable is missing or wrong.
    InvalidEnvironment,
    /// Reading or writing failed.
    Io,
    /// Something is no JSON, or has another shape.
    Decode,
    /// The configuration says something that cannot be.
    InvalidConfig,
    /// It may work later.
    TryAgainLater,
    /// No pod can be added now.
    NotAvailable,
    /// CHECK found the container's network in another state than the desired one.
    CheckFailed,
    /// The agent speaks no version of the socket's interface that this plugin speaks.
    AgentVersion,
    /// The agent refused an address permanently.
    AddressRefused,
    /// The owner has another endpoint.
    OwnerConflict,
    /// The agent failed, or its answer was not understood.
    Agent,
    /// A delegated IPAM plugin could not be run, or its answer was not understood.
    Delegate,
    /// Code that a delegated plugin returned.
    Other(u32),
}

impl Code {
    /// The number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::IncompatibleVersion => 1,
            Self::UnsupportedField => 2,
            Self::UnknownContainer => 3,
            Self::InvalidEnvironment => 4,
            Self::Io => 5,
            Self::Decode => 6,
            Self::InvalidConfig => 7,
            Self::TryAgainLater => 11,
            Self::NotAvailable => 50,
            Self::CheckFailed => 100,
            Self::AgentVersion => 101,
            Self::AddressRefused => 102,
            Self::OwnerConflict => 103,
            Self::Agent => 104,
            Self::Delegate => 105,
            Self::Other(number) => number,
        }
    }
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For runtimes.
    pub code: Code,
    /// For people, in one line.
    pub message: String,
    /// More for people; may be empty.
    pub details: String,
}

impl Failure {
    /// A failure without details.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: String::new(),
        }
    }

    /// This failure with details.
    #[must_use]
    pub fn with_details(self, details: impl Into<String>) -> Self {
        Self {
            details: details.into(),
            ..self
        }
    }

    /// The object that goes to standard output (CNI specification 1.1.0, section 5, "Error").
    #[must_use]
    pub fn to_json(&self, version: SpecVersion) -> Value {
        let mut object = json!({
            "cniVersion": version.name(),
            "code": self.code.number(),
            "msg": self.message,
        });
        if !self.details.is_empty() {
            object["details"] = json!(self.details);
        }
        object
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.details.is_empty() {
            write!(f, ": {}", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
