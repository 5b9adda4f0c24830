//! What is ours in the kernel.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How an object of the kernel stands to what should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectState {
    /// It is as it should be.
    Ok,
    /// It should be there and is not, or is different.
    Missing,
    /// It is ours and should not be there.
    Extra,
}

impl fmt::Display for ObjectState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Extra => "extra",
        })
    }
}

/// One object, as `GET /v1/routes` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ObjectStatus {
    /// What it is: `rule`, `route`, `address`, …
    pub kind: String,
    /// What it serves: `node`, `eni 1`, `endpoint …`.
    pub scope: String,
    /// The object, as the tools of iproute2 write it.
    pub object: String,
    /// How it stands to what should be.
    pub state: ObjectState,
}
