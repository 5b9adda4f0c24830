//! The agent's health, and the reasons.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The agent's health, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// Everything is as it should be.
    Ready,
    /// It works, but something needs a look.
    Degraded,
    /// The node takes no pods. A lack of addresses alone is no reason.
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

/// The agent's health, and the reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// In one word.
    pub state: HealthState,
    /// The reasons for another state than ready; empty when it is ready.
    pub reasons: Vec<String>,
}
