//! Where the running cluster is: a file that every verb reads.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use testkit::cluster::Cluster;
use testkit::fabric::document::write_atomically;

/// The folder of what is known of it.
pub(crate) const FOLDER: &str = "/run/towpath-cluster";

/// Where its parts are.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The process that it belongs to.
    pub(crate) pid: u32,
    /// An administrator's kubeconfig.
    pub(crate) kubeconfig: PathBuf,
    /// The control plane's network namespace.
    pub(crate) control: PathBuf,
    /// The VPC router's network namespace.
    pub(crate) router: PathBuf,
    /// The nodes.
    pub(crate) nodes: Vec<Node>,
}

/// A node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    /// Its name in the cluster.
    pub(crate) name: String,
    /// Its network namespace.
    pub(crate) netns: PathBuf,
    /// The configuration by which `towpath` finds its agent.
    pub(crate) config: PathBuf,
}

impl Place {
    /// Where a cluster is that this process made.
    pub(crate) fn of(cluster: &Cluster) -> Result<Self> {
        let first = cluster.workers.first().context("a cluster has a node")?;
        let nodes = cluster.workers.iter().map(|worker| Node {
            name: worker.name(),
            netns: worker.fabric.node.path(),
            config: worker.fabric.agent.config_path(),
        });
        Ok(Self {
            pid: std::process::id(),
            kubeconfig: cluster.server.admin_kubeconfig()?,
            control: cluster.control().path(),
            router: first.fabric.vpc.router.path(),
            nodes: nodes.collect(),
        })
    }

    /// The cluster that runs.
    ///
    /// # Errors
    /// When there is none: how to start one.
    pub(crate) fn of_running() -> Result<Self> {
        match Self::read()? {
            Some(place) if place.is_alive() => Ok(place),
            _ => bail!("no cluster is up: start one with `cargo xtask cluster up`"),
        }
    }

    /// The place that was written last, if any was.
    pub(crate) fn read() -> Result<Option<Self>> {
        let Ok(text) = fs::read_to_string(Self::file()) else {
            return Ok(None);
        };
        let place = serde_json::from_str(&text);
        Ok(Some(
            place.with_context(|| Self::file().display().to_string())?,
        ))
    }

    /// True while the cluster's process lives.
    pub(crate) fn is_alive(&self) -> bool {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid));
        // The kernel cuts names.
        name.is_ok_and(|name| "towpath-cluster".starts_with(name.trim()))
    }

    /// Lets the other verbs find it.
    pub(crate) fn write(&self) -> Result<()> {
        write_atomically(&Self::file(), &serde_json::to_string_pretty(self)?)
    }

    fn file() -> PathBuf {
        Path::new(FOLDER).join("cluster.json")
    }
}
