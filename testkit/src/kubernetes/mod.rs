//! A real Kubernetes: API server and store, controllers and scheduler, kubelets and kube-proxies on the
//! fabric's nodes; and a stand-in for the metadata service of EC2.

mod controllers;
mod curl;
mod instance;
mod kube_proxy;
mod kubectl;
mod kubelet;
mod manifest;
mod plane;
mod program;
pub mod proxy;
mod server;
mod user;

pub use controllers::Controllers;
pub use curl::{Answer, Caller};
pub use instance::MetadataService;
pub use kube_proxy::{KubeProxy, ProxyMode};
pub use kubectl::{Done, Kubectl};
pub use kubelet::Kubelet;
pub use manifest::{crds, deploy, documents, path_of, pools_of_v2, read as read_manifest};
pub use plane::{Access, Component, ControlPlane};
pub use program::program;
pub use server::{ApiServer, ServerSpec};
pub use user::User;
