//! A real kubelet on a fabric's node, above containerd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::Result;
use ipam::Family;
use serde_json::{Value, json};

use super::server::{end, log_to};
use super::{ApiServer, User, program};
use crate::cri::Bed;
use crate::fabric::Fabric;

/// A running kubelet. Dropping it ends it; pods stay.
#[derive(Debug)]
pub struct Kubelet {
    child: Child,
    log: PathBuf,
}

impl Kubelet {
    /// Starts it for the node of a containerd that was started for it. It creates the node's object
    /// itself. Pods use the DNS servers at `dns`.
    ///
    /// # Errors
    /// When it was not built, or cannot be started.
    pub fn start(fabric: &Fabric, bed: &Bed, server: &ApiServer, dns: &[&str]) -> Result<Self> {
        fabric.make_cgroup()?;
        let folder = bed.file("kubelet");
        fs::create_dir_all(&folder)?;
        let (config, log) = (folder.join("config"), bed.file("kubelet.log"));
        let mut settings = settings(&folder, fabric, bed);
        settings["clusterDNS"] = json!(dns);
        fs::write(&config, settings.to_string())?;
        let addresses: Vec<_> = Family::ALL
            .into_iter()
            .filter_map(|family| Some(fabric.node_at(family).ok()?.address.to_string()))
            .collect();
        let name = fabric.name();
        let mut command = fabric.node.command(&program("kubelet")?.to_string_lossy());
        command
            .arg("--config")
            .arg(&config)
            .arg("--kubeconfig")
            .arg(server.kubeconfig_of(&User::Node(name.clone()))?)
            .arg("--root-dir")
            .arg(&folder)
            .arg("--cert-dir")
            .arg(folder.join("pki"))
            .args(["--hostname-override", &name])
            .args(["--node-ip", &addresses.join(",")]);
        let child = bed.spawn_beside(log_to(&mut command, &log)?)?;
        Ok(Self { child, log })
    }

    /// Log of the kubelet.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string())
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Its settings: they change nothing of the machine, whichever cgroups it has, and report changes
/// to the cluster within a second.
fn settings(folder: &Path, fabric: &Fabric, bed: &Bed) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // The API server has no client certificate for it.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", fabric.cgroup()),
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{}", bed.socket().display()),
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "failCgroupV1": false,
        "failSwapOn": false,
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": false,
        "makeIPTablesUtilChains": false,
        "nodeStatusUpdateFrequency": "1s",
        "oomScoreAdj": 0,
        "podLogsDir": "/var/log/pods",
        "resolvConf": "/dev/null",
        "volumePluginDir": folder.join("plugins"),
    })
}
