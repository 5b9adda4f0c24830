//! The programs, by their hooks.

pub(super) mod from_endpoint;
pub(super) mod from_network;
pub(super) mod to_endpoint;
pub(super) mod to_network;
