//! Readiness of a part of the node, or the reason why it is not ready.

use serde::{Deserialize, Serialize};

/// Readiness of a part of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Readiness {
    /// Everything it needs is in the kernel.
    Ready,
    /// It cannot be used.
    NotReady {
        /// The reason.
        reason: String,
    },
    /// It is excluded on purpose.
    Excluded {
        /// The reason.
        reason: String,
    },
}

impl Readiness {
    /// Not ready, because of `reason`.
    pub fn not_ready(reason: impl Into<String>) -> Self {
        Self::NotReady {
            reason: reason.into(),
        }
    }

    /// True if it can be used.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }

    /// Reason why it cannot be used, if it cannot.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Ready => None,
            Self::NotReady { reason } | Self::Excluded { reason } => Some(reason),
        }
    }
}
