//! Identity of a network namespace, whatever path leads to it.

use serde::{Deserialize, Serialize};

/// Identity of a network namespace within a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NetnsId {
    /// The inode's number (namespaces(7)). The next namespace may get it when this one is gone.
    pub inode: u64,
    /// The cookie (`SO_NETNS_COOKIE`, Linux 5.14 and newer), which no other one ever has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
}

impl NetnsId {
    /// True if the two are certainly different namespaces.
    #[must_use]
    pub fn is_other_than(self, other: Self) -> bool {
        match (self.cookie, other.cookie) {
            (Some(own), Some(other)) => own != other,
            _ => self.inode != other.inode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_decides_where_both_are_known() {
        let id = |inode, cookie| NetnsId { inode, cookie };
        assert!(!id(1, None).is_other_than(id(1, Some(7))));
        assert!(id(1, None).is_other_than(id(2, Some(7))));
        assert!(id(1, Some(8)).is_other_than(id(1, Some(7))));
        assert!(!id(1, Some(7)).is_other_than(id(1, Some(7))));
    }
}
