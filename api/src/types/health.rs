//! Health of the agent as a whole, and the reasons.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Health of the agent, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// Everything is in the desired state.
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

/// Health of the agent, and the reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// In one word.
    pub state: HealthState,
    /// Problems that block readiness or need attention; empty when the agent is ready.
    pub reasons: Vec<String>,
}
