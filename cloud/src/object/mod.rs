//! EC2's objects as values.

pub(super) mod block;
pub(super) mod eni;
pub(super) mod id;
pub(super) mod instance;
pub mod subnet;
pub mod tags;
pub(super) mod vpc;
