//! Which pod a request is for.

/// A pod. It outlives its sandboxes: each attempt to start it is made with another one, and so by
/// another [`Owner`](crate::Owner).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid, where it is known. Another pod of that name has another one.
    pub uid: Option<String>,
}

impl Pod {
    /// True if both can be one pod. Without a uid the name decides.
    #[must_use]
    pub fn may_be(&self, other: &Self) -> bool {
        let is_named_alike = self.namespace == other.namespace && self.name == other.name;
        let have_uids = self.uid.is_some() && other.uid.is_some();
        is_named_alike && (!have_uids || self.uid == other.uid)
    }
}
