//! A real API server of Kubernetes with its store, in a network namespace: TLS, and RBAC on; and a
//! stand-in for the metadata service of EC2.

mod curl;
mod instance;
mod kube_proxy;
mod kubectl;
mod kubelet;
mod manifest;
pub mod proxy;
mod server;

pub use curl::{Answer, Caller};
pub use instance::MetadataService;
pub use kube_proxy::KubeProxy;
pub use kubectl::{Done, Kubectl};
pub use kubelet::Kubelet;
pub use manifest::{crds, deploy, documents, path_of, read as read_manifest};
pub use server::ApiServer;
