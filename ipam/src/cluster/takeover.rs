//! The time before a new leader may grant blocks.

use std::collections::BTreeSet;

/// Nodes whose objects a new leader still has to touch and read.
///
/// A leader that was paused can wake up and send a grant that it had planned. That grant names the
/// version of the node's object that it was planned for, and that object's demand was not met. So a
/// new leader first changes the object of each node with unmet demand, and reads the answers. Then
/// an old grant is either in one of the answers, or is refused for its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takeover {
    untouched: BTreeSet<String>,
}

impl Takeover {
    /// The beginning, with the nodes whose demand is not met.
    #[must_use]
    pub fn begin(unmet: BTreeSet<String>) -> Self {
        Self { untouched: unmet }
    }

    /// Records that this leader has changed a node's object and observed the answer, or that the
    /// object is gone.
    pub fn touched(&mut self, node: &str) {
        self.untouched.remove(node);
    }

    /// Nodes that are to be touched.
    pub fn untouched(&self) -> impl Iterator<Item = &str> {
        self.untouched.iter().map(String::as_str)
    }

    /// Returns true if the node is to be touched.
    #[must_use]
    pub fn awaits(&self, node: &str) -> bool {
        self.untouched.contains(node)
    }

    /// Returns true once blocks may be granted, to any node.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.untouched.is_empty()
    }
}
