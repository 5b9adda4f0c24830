//! Objects in the kernel that are ours, in words.

use serde::{Deserialize, Serialize};

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A sysctl.
    Sysctl,
    /// A device's MTU.
    Mtu,
    /// A device's administrative state.
    LinkState,
    /// An endpoint's devices.
    Device,
    /// An address on a device.
    Address,
    /// A route.
    Route,
    /// A rule.
    Rule,
    /// A neighbour entry.
    Neighbour,
    /// A map entry.
    MapEntry,
    /// A program at a hook.
    Attachment,
    /// The nftables table for exceptions of the direct path.
    NetfilterTable,
}

/// State of an object, compared with the desired one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectState {
    /// It is there and should be.
    Present,
    /// It should be there and is not, or differs.
    Missing,
    /// It is ours and there, but should not be.
    Unexpected,
}

/// One object of ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OwnedObject {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// The object, in the words that `ip rule` and `ip route` use.
    pub object: String,
    /// Scope of the object: `node`, `eni 1`, `endpoint 0123456789ab`.
    pub scope: String,
    /// State of the object, compared with the desired one.
    pub state: ObjectState,
}
