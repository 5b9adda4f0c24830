//! The agent's interface: HTTP and JSON over a Unix socket, as docs/reference/api.md describes it. The CNI
//! plugin and the command line are its users.

mod addresses;
mod body;
mod client;
mod error;
mod handle;
mod routes;
mod server;
mod silence;
pub mod types;
mod validate;

pub use client::{Client, ClientError};
pub use error::{ApiError, ErrorCode};
pub use handle::{AddressCommand, Command, Handle, Reply};
pub use server::{Server, ServerLimits};
pub use silence::Listener;
pub use validate::{AddressRequest, Ask, EndpointRequest};

/// The version of the interface, as it stands in every path.
pub const VERSION: &str = "v1";
