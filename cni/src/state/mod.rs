//! Files that outlive a call: the queue of DELs, the note of readiness, locks.

pub(super) mod lock;
pub(super) mod note;
pub mod queue;
