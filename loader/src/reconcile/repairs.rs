//! Repairs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::object::ObjectKind;

/// An object that somebody else keeps changing back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairWar {
    /// What kind of object it is.
    pub kind: ObjectKind,
    /// The object, in words.
    pub object: String,
    /// Repairs of it within the last minute.
    pub count: usize,
    /// Who the other owner may be, and what to do about it.
    pub hint: String,
}

/// What others undid and we put back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repairs {
    /// Repairs since the start.
    pub total: u64,
    /// The same by kind of object.
    pub by_kind: BTreeMap<ObjectKind, u64>,
    /// Objects that are being fought over now.
    pub wars: Vec<RepairWar>,
}
