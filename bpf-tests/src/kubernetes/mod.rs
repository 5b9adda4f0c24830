//! A real API server of Kubernetes with its store, in a network namespace: TLS, and RBAC on.

mod curl;
mod kube_proxy;
mod kubectl;
mod kubelet;
mod manifest;
mod server;

pub use curl::{Answer, Caller};
pub use kube_proxy::KubeProxy;
pub use kubectl::{Done, Kubectl};
pub use kubelet::Kubelet;
pub use manifest::{crds, deploy, documents, path_of, read as read_manifest};
pub use server::ApiServer;
