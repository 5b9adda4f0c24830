//! The programs: first steps for a packet of each hook, and its outcome as a return code.

pub(crate) mod finish;
pub(crate) mod from_endpoint;
pub(crate) mod from_network;
mod log;
pub(crate) mod reaper;
mod step;
pub(crate) mod to_endpoint;
pub(crate) mod to_network;
