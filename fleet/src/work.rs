//! Work that a fleet wants to be done.

use std::fmt;

use cloud::node::Step;
use cloud::query::Query;
use kubernetes::operation::report::Reason;
use serde_json::Value;

/// The id of a work. No id is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(u64);

impl WorkId {
    /// Returns this id and moves on to the next one.
    pub(crate) fn advance(&mut self) -> Self {
        let id = *self;
        self.0 += 1;
        id
    }
}

impl Default for WorkId {
    fn default() -> Self {
        Self(1)
    }
}

impl fmt::Display for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A work to carry out once. Repetitions are the fleet's.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// The id that the answer has to name.
    pub id: WorkId,
    /// The task.
    pub task: Task,
}

/// A task.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Change something at EC2. Answered by [`Input::Answer`](crate::Input::Answer).
    Call(Step),
    /// Read a page of EC2. Answered by [`Input::Page`](crate::Input::Page).
    Read(Query),
    /// Patch a `CiliumNode` by a merge patch, which names the version that it is for. Answered by
    /// [`Input::Written`](crate::Input::Written).
    Patch {
        /// The object's name.
        name: String,
        /// The part to patch.
        part: Part,
        /// The patch.
        body: Value,
    },
    /// Delete a `CiliumNode`, with uid and version as preconditions. Answered by
    /// [`Input::Written`](crate::Input::Written).
    Delete {
        /// The object's name.
        name: String,
        /// The uid that it must have.
        uid: String,
        /// The version that it must have.
        version: String,
    },
    /// Record an event about a node. It has no answer.
    Event(Event),
}

/// A part of an object with an endpoint of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The object itself.
    Spec,
    /// The subresource `status`.
    Status,
}

impl Part {
    /// The key of the part in an object.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Status => "status",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

/// An event about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The node's name.
    pub node: String,
    /// The kind of reason.
    pub reason: Reason,
    /// The reason.
    pub text: String,
}
