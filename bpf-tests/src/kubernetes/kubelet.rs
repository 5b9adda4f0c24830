//! A real kubelet on the fabric's node, above containerd.

use std::fs;
use std::path::PathBuf;
use std::process::Child;

use anyhow::{Context as _, Result};
use serde_json::json;
use towpath::intent::Family;

use super::ApiServer;
use super::server::{end, log_to};
use crate::cri::{Bed, IMAGE};
use crate::fabric::Fabric;
use crate::fabric::document::NODE_NAME;

/// Names the kubelet's binary.
const BINARY_VARIABLE: &str = "TOWPATH_KUBELET";

/// A running kubelet. Dropping it ends it; pods stay.
#[derive(Debug)]
pub struct Kubelet {
    child: Child,
    log: PathBuf,
}

impl Kubelet {
    /// Starts it, beside a containerd that was started for it. It makes the node's object itself.
    ///
    /// # Errors
    /// When it was not built, or cannot be started.
    pub fn start(fabric: &Fabric, bed: &Bed, server: &ApiServer) -> Result<Self> {
        let binary = std::env::var_os(BINARY_VARIABLE).with_context(|| {
            format!("{BINARY_VARIABLE} names no kubelet: `cargo xtask test api` builds it")
        })?;
        fabric.make_cgroup()?;
        let folder = bed.file("kubelet");
        fs::create_dir_all(&folder)?;
        let (config, log) = (folder.join("config"), bed.file("kubelet.log"));
        let settings = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", fabric.cgroup()),
            "enforceNodeAllocatable": [],
            "evictionHard": {},
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            "nodeStatusUpdateFrequency": "1s",
            "oomScoreAdj": 0,
            "resolvConf": "/dev/null",
            "volumePluginDir": folder.join("plugins"),
        });
        fs::write(&config, settings.to_string())?;
        let address = fabric.node_at(Family::V4)?.address.to_string();
        let mut command = fabric.node.command(&binary.to_string_lossy());
        command
            .arg("--config")
            .arg(&config)
            .arg("--kubeconfig")
            .arg(server.admin_kubeconfig()?)
            .arg("--root-dir")
            .arg(&folder)
            .arg("--cert-dir")
            .arg(folder.join("pki"))
            .args(["--container-runtime", "remote"])
            .arg("--container-runtime-endpoint")
            .arg(format!("unix://{}", bed.socket().display()))
            .args(["--pod-infra-container-image", IMAGE])
            .args(["--hostname-override", NODE_NAME, "--node-ip", &address]);
        let child = bed.spawn_beside(log_to(&mut command, &log)?)?;
        Ok(Self { child, log })
    }

    /// What it wrote.
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
