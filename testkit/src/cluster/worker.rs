//! A worker node: a fabric with containerd, kubelet and kube-proxy.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::DNS;
use crate::cri::{Bed, Image};
use crate::fabric::{Fabric, Netns};
use crate::kubernetes::{ApiServer, KubeProxy, Kubelet, MetadataService, ProxyMode, User, program};

/// `CAP_SYS_RESOURCE` (include/uapi/linux/capability.h).
const SYS_RESOURCE: u32 = 24;
/// The image of `CoreDNS`.
pub(super) const DNS_IMAGE: &str = "localhost/coredns:1";

/// A node of a cluster. Dropping it ends everything on it.
#[derive(Debug)]
pub struct Worker {
    /// kube-proxy.
    pub proxy: Option<KubeProxy>,
    /// The kubelet, while it runs.
    pub kubelet: Option<Kubelet>,
    /// containerd.
    pub bed: Bed,
    /// The instance's metadata service.
    pub metadata: MetadataService,
    /// The node's network, and the agent's files.
    pub fabric: Fabric,
}

impl Worker {
    /// Joins a fabric's node to a cluster, and loads the images that its pods may have.
    pub(super) fn start(
        fabric: Fabric,
        server: &ApiServer,
        mode: ProxyMode,
        image: &Path,
    ) -> Result<Self> {
        let metadata = fabric
            .node
            .enter(|| MetadataService::start_on_node(&fabric))?;
        let bed = Bed::start_node(&fabric)?;
        bed.import(image)?;
        let coredns = program("coredns")?;
        let dns = Image {
            name: DNS_IMAGE,
            program: (&coredns, "bin/coredns"),
            links: &[],
            command: &["/bin/coredns", "-conf", "/etc/coredns/Corefile"],
        };
        bed.import(&dns.write(&fabric.file("image-of-coredns"))?)?;
        let mut worker = Self {
            proxy: None,
            kubelet: None,
            bed,
            metadata,
            fabric,
        };
        worker.start_kubelet(server)?;
        worker.start_proxy(server, mode)?;
        Ok(worker)
    }

    /// Starts the kubelet, or starts it again with what it has on disk.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_kubelet(&mut self, server: &ApiServer) -> Result<()> {
        self.kubelet = None;
        let kubelet = Kubelet::start(&self.fabric, &self.bed, server, &[DNS])?;
        self.kubelet = Some(kubelet);
        Ok(())
    }

    /// Starts kube-proxy, or starts it again.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_proxy(&mut self, server: &ApiServer, mode: ProxyMode) -> Result<()> {
        self.proxy = None;
        let kubeconfig = server.kubeconfig_of(&User::Proxy)?;
        self.proxy = Some(KubeProxy::start(&self.fabric, &kubeconfig, mode)?);
        Ok(())
    }

    /// The node's name in the cluster.
    #[must_use]
    pub fn name(&self) -> String {
        self.fabric.name()
    }

    /// The network namespace of a pod on this node.
    ///
    /// # Errors
    /// When the runtime has no such pod.
    pub fn netns_of(&self, namespace: &str, pod: &str) -> Result<Netns> {
        let (_, named) = self.bed.cri.pod_named(namespace, pod)?;
        Netns::foreign(&self.bed.namespace(&named))
    }

    /// True if the CNI plugin's network is configured.
    #[must_use]
    pub fn has_network(&self) -> bool {
        self.bed.networks().join("10-towpath.conflist").exists()
    }

    /// The logs of everything on the node.
    pub(super) fn logs(&self) -> Vec<String> {
        [
            Some(self.bed.logs_of_pods()),
            self.kubelet.as_ref().map(Kubelet::log),
            self.proxy.as_ref().map(KubeProxy::log),
            Some(self.bed.log()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Ends everything but the fabric.
    pub(super) fn into_fabric(self) -> Fabric {
        self.fabric
    }
}

/// Takes `SYS_RESOURCE` from a workload's containers where the machine itself does not have it, as in
/// some virtual machines: only Linux before 5.11 needs it.
pub(super) fn leave_out_missing_capability(workload: &mut Value) -> Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bounding = u64::from_str_radix(bounding.context("a bounding set")?.trim(), 16)?;
    if bounding & (1 << SYS_RESOURCE) != 0 {
        return Ok(());
    }
    let containers = workload.pointer_mut("/spec/template/spec/containers");
    let containers = containers.and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        let added = container.pointer_mut("/securityContext/capabilities/add");
        if let Some(added) = added.and_then(Value::as_array_mut) {
            added.retain(|capability| capability != "SYS_RESOURCE");
        }
    }
    Ok(())
}
