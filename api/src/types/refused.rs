//! Entries of what is read that are not used, while the rest of it is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusedKind {
    /// An ENI of the node document.
    Eni,
    /// A single address of an ENI.
    Address,
    /// A prefix of an ENI, or a block of a pool.
    Block,
    /// A field of a pool's document or object.
    Pool,
    /// An annotation.
    Annotation,
    /// A whole document, object or file.
    Document,
}

impl RefusedKind {
    /// Each of them.
    pub const ALL: [Self; 6] = [
        Self::Eni,
        Self::Address,
        Self::Block,
        Self::Pool,
        Self::Annotation,
        Self::Document,
    ];

    /// Its name, as metrics have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eni => "eni",
            Self::Address => "address",
            Self::Block => "block",
            Self::Pool => "pool",
            Self::Annotation => "annotation",
            Self::Document => "document",
        }
    }
}

/// An entry that is not used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Refused {
    /// The kind of entry.
    pub kind: RefusedKind,
    /// The entry (`pool blue`, `eni-0abc`).
    pub entry: String,
    /// The field, its value, and what is allowed.
    pub reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.entry, self.reason)
    }
}
