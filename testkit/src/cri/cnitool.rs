//! cnitool in the node's network namespace: the CNI project's own library runs the plugins, CHECK
//! included, and nothing else is there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::private::{self, Shared};
use super::runtimes::Plugins;
use crate::fabric::{Fabric, Netns};
use crate::kubernetes::program;

/// cnitool, with its networks.
#[derive(Debug)]
pub struct Cnitool {
    node: Netns,
    shared: Shared,
    program: PathBuf,
    plugins: Vec<PathBuf>,
}

impl Cnitool {
    /// Makes a cnitool with networks, by their configuration lists. Plugins are looked for in
    /// `folders`, then among the reference plugins.
    ///
    /// # Errors
    /// When it was not fetched.
    pub fn new(fabric: &Fabric, networks: &[Value], folders: &[PathBuf]) -> Result<Self> {
        let folder = fabric.file("cnitool");
        let cnitool = Self {
            node: Netns::foreign(&fabric.node.path())?,
            shared: Shared::make(&folder)?,
            program: program("cnitool")?,
            plugins: [folders, &[Plugins::Old.folder()?]].concat(),
        };
        fs::create_dir_all(cnitool.networks())?;
        for network in networks {
            let name = network["name"].as_str().context("a network's name")?;
            let file = cnitool.networks().join(format!("{name}.conflist"));
            fs::write(file, network.to_string())?;
        }
        Ok(cnitool)
    }

    fn networks(&self) -> PathBuf {
        self.shared.folder().join("networks")
    }

    /// `cnitool add|check|del NETWORK NETNS`, with variables in its environment; what it printed.
    ///
    /// # Errors
    /// When it fails: what it said.
    pub fn call(
        &self,
        verb: &str,
        network: &str,
        netns: &Path,
        environment: &[(&str, &str)],
    ) -> Result<String> {
        let mut command = self.node.command(&self.program.to_string_lossy());
        command
            .args([verb, network])
            .arg(netns)
            .env("NETCONFPATH", self.networks())
            .env("CNI_PATH", std::env::join_paths(&self.plugins)?)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = private::spawn(&self.shared, &mut command)?.wait_with_output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !output.status.success() {
            let (said, printed) = (text(&output.stderr), text(&output.stdout));
            bail!(
                "cnitool {verb} {network}: {}: {said}{printed}",
                output.status
            );
        }
        Ok(text(&output.stdout))
    }
}
