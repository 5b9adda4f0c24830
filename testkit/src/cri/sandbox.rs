//! Pods of a runtime.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use k8s_cri::v1;

/// A port of the host that leads to one of a pod: the CNI plugin `portmap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMapping {
    /// The host's port.
    pub host: u16,
    /// The pod's.
    pub container: u16,
}

/// Request for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// The pod's name.
    pub name: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its labels.
    pub labels: HashMap<String, String>,
    /// Its annotations: containerd reads bandwidths from them.
    pub annotations: HashMap<String, String>,
    /// Its ports on the host.
    pub ports: Vec<PortMapping>,
    /// The runtime handler, which selects the network; empty for the default.
    pub handler: String,
}

impl PodRequest {
    /// A pod with defaults, in the namespace `default`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            ..Self::default()
        }
    }

    /// The request in the runtime's form; the pod's processes go below a cgroup.
    pub(super) fn config(&self, cgroup: &str) -> v1::PodSandboxConfig {
        let mapping = |port: &PortMapping| v1::PortMapping {
            protocol: v1::Protocol::Tcp.into(),
            container_port: port.container.into(),
            host_port: port.host.into(),
            ..v1::PortMapping::default()
        };
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: self.name.clone(),
                uid: format!("uid-{}", self.name),
                namespace: self.namespace.clone(),
                attempt: 0,
            }),
            hostname: self.name.clone(),
            dns_config: Some(v1::DnsConfig::default()),
            port_mappings: self.ports.iter().map(mapping).collect(),
            labels: self.labels.clone(),
            annotations: self.annotations.clone(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: format!("/{cgroup}"),
                ..v1::LinuxPodSandboxConfig::default()
            }),
            ..v1::PodSandboxConfig::default()
        }
    }
}

/// A running pod.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// The runtime's id of the pod: the container id of CNI.
    pub id: String,
    /// Its addresses, as the runtime reports them.
    pub addresses: Vec<IpAddr>,
    /// Its network namespace.
    pub netns: PathBuf,
    /// The duration of its start.
    pub took: Duration,
    pub(super) config: v1::PodSandboxConfig,
}
