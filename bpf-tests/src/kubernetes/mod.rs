//! A real API server of Kubernetes with its store, in a network namespace: TLS, and RBAC on.

mod curl;
mod manifest;
pub mod proxy;
mod server;

pub use curl::{Answer, Caller};
pub use manifest::{crds, path_of, read as read_manifest};
pub use server::ApiServer;
