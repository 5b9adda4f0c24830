//! A pod by its name, and the name of its device that follows from it.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha1::{Digest as _, Sha1};

/// Hexadecimal digits of the hash in the name of a pod's device.
const DIGITS: usize = 11;

/// A pod, by what Kubernetes calls it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    deny_unknown_fields,
    expecting = "an object with namespace, name and, where it is known, uid"
)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl From<&PodRef> for ipam::Pod {
    fn from(pod: &PodRef) -> Self {
        let PodRef {
            namespace,
            name,
            uid,
        } = pod;
        Self {
            namespace: namespace.clone(),
            name: name.clone(),
            uid: uid.clone(),
        }
    }
}

impl PodRef {
    /// Name of the pod's host-side device by the rule of Calico and the VPC CNI, by which policy
    /// engines find it.
    #[must_use]
    pub fn device(&self, prefix: &str) -> String {
        let digest = Sha1::digest(format!("{}.{}", self.namespace, self.name));
        let hex = format!("{digest:x}");
        format!("{prefix}{}", hex.get(..DIGITS).unwrap_or(&hex))
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
