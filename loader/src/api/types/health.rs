//! Whether things work, and why not.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether one ENI or endpoint can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Readiness {
    /// It works.
    Ready,
    /// It does not work yet, or no more.
    NotReady {
        /// What is missing.
        reason: String,
    },
    /// It is not for pods.
    Excluded {
        /// What excludes it.
        reason: String,
    },
}

impl Readiness {
    /// Whether it is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready)
    }

    /// Why it is not ready; empty when it is.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Ready => "",
            Self::NotReady { reason } | Self::Excluded { reason } => reason,
        }
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::NotReady { .. } => "not-ready",
            Self::Excluded { .. } => "excluded",
        })
    }
}

/// How the agent is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// Everything is as it should be.
    Ready,
    /// It works, but something needs a look.
    Degraded,
    /// Pods cannot be added.
    NotReady,
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::NotReady => "not-ready",
        })
    }
}

/// How the agent is, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// In one word.
    pub state: HealthState,
    /// Why it is not ready; empty when it is.
    pub reasons: Vec<String>,
}
