//! The runtime's request: environment, arguments, configuration, owner.

pub mod arguments;
pub mod config;
pub mod environment;
pub mod owner;
