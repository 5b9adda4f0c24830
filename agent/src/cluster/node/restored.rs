//! Objects of an API server that was restored from a backup.
//!
//! The status of such an object can lack ENIs that pods use by now, and can show addresses that EC2
//! has taken back. The document of before stays in force until the operator has written another
//! status.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

/// Time in which an operator writes the status of an object of a restored API server.
const TIME: Duration = Duration::from_mins(1);

/// An object of a backup.
pub(super) struct Restored {
    status: Value,
    /// The end of the wait for another status.
    pub(super) until: Instant,
}

impl Restored {
    /// The object appears now.
    pub(super) fn new(object: &Value) -> Self {
        Self {
            status: object["status"].clone(),
            until: Instant::now() + TIME,
        }
    }

    /// True if the operator may still have to write the object's status.
    pub(super) fn awaits_status(&self, object: &Value) -> bool {
        object["status"] == self.status && Instant::now() < self.until
    }
}

/// True for an object of another uid than the known one that has ENIs already: a backup may have had
/// it.
pub(super) fn is_anothers(object: &Value, known: &Value) -> bool {
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    let enis = object["status"]["eni"]["enis"].as_object();
    enis.is_some_and(|enis| !enis.is_empty()) && uid(known) != uid(object)
}
