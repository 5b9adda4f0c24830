//! The real kube-proxy on a fabric's node.

use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::program;
use super::server::{end, log_to};
use crate::fabric::Fabric;

/// The program behind all of iptables' names, for its nftables backend.
const XTABLES: &str = "/usr/sbin/xtables-nft-multi";

/// Kind of the rules that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum ProxyMode {
    /// Rules of iptables.
    Iptables,
    /// Rules of nftables.
    Nftables,
}

impl fmt::Display for ProxyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        })
    }
}

/// A running kube-proxy. Dropping it ends it; its rules stay.
#[derive(Debug)]
pub struct KubeProxy {
    child: Child,
    log: PathBuf,
}

impl KubeProxy {
    /// Starts it. Its folder is the fabric's `kube-proxy`.
    ///
    /// # Errors
    /// When it was not built, or cannot be started.
    pub fn start(fabric: &Fabric, kubeconfig: &Path, mode: ProxyMode) -> Result<Self> {
        let binary = program("kube-proxy")?;
        let folder = fabric.file("kube-proxy");
        let (config, tools) = (folder.join("config"), folder.join("bin"));
        fs::create_dir_all(&tools)?;
        let mut settings = configuration(mode);
        settings["hostnameOverride"] = json!(fabric.name());
        settings["clientConnection"] = json!({"kubeconfig": kubeconfig});
        fs::write(&config, settings.to_string())?;
        for name in ["iptables", "ip6tables"] {
            for end in ["", "-save", "-restore"] {
                let link = tools.join(format!("{name}{end}"));
                if !link.exists() {
                    symlink(XTABLES, link)?;
                }
            }
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let log = folder.join("log");
        let mut command = fabric.node.command(&binary.to_string_lossy());
        command
            .arg("--config")
            .arg(&config)
            .env("PATH", format!("{}:{path}", tools.display()));
        let child = log_to(&mut command, &log)?.spawn();
        Ok(Self {
            child: child.context("cannot start kube-proxy")?,
            log,
        })
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Log of kube-proxy.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string())
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// kube-proxy's settings, which change only this node's own state.
fn configuration(mode: ProxyMode) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "mode": mode.to_string(),
        // The mode nftables by default serves node ports at the primary address alone.
        "nodePortAddresses": ["0.0.0.0/0", "::/0"],
        // These settings belong to the whole machine, or are left as they are.
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"
        },
        "iptables": {"masqueradeBit": 14, "syncPeriod": "30s", "minSyncPeriod": "1s"},
        "nftables": {"masqueradeBit": 14, "syncPeriod": "30s", "minSyncPeriod": "1s"},
        "oomScoreAdj": 0,
    })
}
