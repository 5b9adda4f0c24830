//! The owner of an address.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The owner of a lease: one interface of one container, as CNI names an attachment. Another kind
/// of resource puts its own two names here (a claim and a device of it).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    deny_unknown_fields,
    expecting = "an object with container-id and interface"
)]
pub struct Owner {
    /// The runtime's id of the container (sandbox). A new sandbox of the same pod has another one,
    /// so that a late release of the old one frees nothing of the new.
    pub container_id: String,
    /// Name of the interface inside the container.
    pub interface: String,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.container_id, self.interface)
    }
}
