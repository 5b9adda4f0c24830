//! Work that a fleet wants to be done.

use std::fmt;

use cloud::call::query::Query;
use cloud::node::Step;
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
    /// List every `CiliumNode`, not from a cache of the API server. Answered by
    /// [`Input::Listed`](crate::Input::Listed).
    List,
    /// Patch a `CiliumNode` by a merge patch. One of spec or status names the version that it is for.
    /// Answered by [`Input::Written`](crate::Input::Written).
    Patch {
        /// The object's name.
        name: String,
        /// The part to patch.
        part: Part,
        /// The patch.
        body: Value,
    },
    /// Patch a `CiliumPodIPPool` by a merge patch, which names the version that it is for. Answered by
    /// [`Input::Written`](crate::Input::Written).
    PatchPool {
        /// The pool's name.
        name: String,
        /// The version of the resource that it was read in.
        version: String,
        /// The patch.
        body: Value,
    },
    /// Patch the status of a Node by a merge patch. Answered by
    /// [`Input::Written`](crate::Input::Written).
    Advertise {
        /// The Node's name.
        name: String,
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
    /// Record an event. It has no answer.
    Event(Event),
}

/// A part of an object with an endpoint of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The object's annotations.
    Metadata,
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
            Self::Metadata => "metadata",
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

/// The subject of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A node, by its name.
    Node(String),
    /// A pool.
    Pool {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
}

/// An event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The object.
    pub about: About,
    /// The kind of reason.
    pub reason: Reason,
    /// The reason.
    pub text: String,
}
