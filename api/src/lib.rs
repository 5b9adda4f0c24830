//! The contract of the agent's socket, as docs/reference/api.md describes it: HTTP and JSON over a
//! Unix socket. The CNI plugin and the command line are its users.

#[cfg(feature = "client")]
mod client;
mod error;
pub mod ids;
#[cfg(feature = "client")]
mod silence;
mod tuple;
pub mod types;

#[cfg(feature = "client")]
pub use client::{Client, ClientError};
pub use error::{ApiError, ErrorBody, ErrorCode};
#[cfg(feature = "client")]
pub use silence::Listener;
pub use tuple::{BadTuple, Peer, Protocol, Tuple};

/// The version of the interface, as it stands in every path.
pub const VERSION: &str = "v1";
