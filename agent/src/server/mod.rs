//! The server of the agent's interface: HTTP and JSON over a Unix socket, as
//! docs/reference/api.md describes it.

mod addresses;
mod body;
pub(crate) mod connections;
mod durations;
pub(crate) mod exposition;
mod handle;
mod listener;
mod metrics;
mod refusal;
mod routes;
mod validate;

pub use handle::{AddressCommand, Command, Handle, IngressCommand, Reply};
pub use listener::{Server, ServerLimits};
pub use metrics::{ApiServerStats, MetricsSnapshot, OwnAddressStats, ReconcileStats};
pub use validate::{AddressRequest, AddressSpec, EndpointRequest};
