//! The agent's files on disk, and the locks that guard them.

pub(crate) mod another_machine;
pub(crate) mod atomic_dir;
pub(crate) mod identity;
pub(crate) mod lock;
pub(crate) mod store;
