//! A real API server of Kubernetes with its store, in a network namespace: TLS, and RBAC on.

mod curl;
mod kubectl;
mod manifest;
mod server;

pub use curl::{Answer, Caller};
pub use kubectl::{Done, Kubectl};
pub use manifest::{crds, deploy, documents, path_of, read as read_manifest};
pub use server::ApiServer;
