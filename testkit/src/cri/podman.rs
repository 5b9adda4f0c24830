//! podman in the node's network namespace, with everything that it writes below the fabric's folder.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::private::{self, Shared};
use super::runtimes::{self, Plugins};
use super::{IMAGE, Image};
use crate::fabric::{Fabric, Netns};

/// podman, with the image loaded.
#[derive(Debug)]
pub struct Podman<'a> {
    node: &'a Netns,
    shared: Shared,
    cgroup: String,
    /// Its unpacked package.
    root: PathBuf,
}

impl<'a> Podman<'a> {
    /// Makes a podman with CNI networks, by their configuration lists. Plugins are looked for in
    /// `folders`, then among the reference plugins.
    ///
    /// # Errors
    /// When it was not fetched, or does not load the image.
    pub fn new(fabric: &'a Fabric, networks: &[Value], folders: &[PathBuf]) -> Result<Self> {
        let folder = fabric.file("podman");
        let podman = Self {
            node: &fabric.node,
            shared: Shared::make(&folder)?,
            cgroup: fabric.cgroup(),
            root: runtimes::podman()?,
        };
        let place = |name: &str| folder.join(name);
        for name in ["networks", "image"] {
            fs::create_dir_all(place(name))?;
        }
        for network in networks {
            let name = network["name"].as_str().context("a network's name")?;
            let file = place("networks").join(format!("{name}.conflist"));
            fs::write(file, network.to_string())?;
        }
        fs::write(
            place("containers.conf"),
            podman.containers(&folder, folders)?,
        )?;
        let storage = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = {}\nrunroot = {}\n",
            json!(place("graph")),
            json!(place("run")),
        );
        fs::write(place("storage.conf"), storage)?;
        fs::write(place("registries.conf"), "")?;
        let policy = json!({"default": [{"type": "insecureAcceptAnything"}]});
        fs::write(place("policy.json"), policy.to_string())?;
        let archive = Image::busybox().write(&place("image"))?;
        podman.call(&[
            "load".into(),
            "--signature-policy".into(),
            place("policy.json").into(),
            "--input".into(),
            archive.into(),
        ])?;
        Ok(podman)
    }

    /// The configuration of containers and their networks.
    fn containers(&self, folder: &Path, folders: &[PathBuf]) -> Result<String> {
        let plugins: Vec<_> = folders
            .iter()
            .cloned()
            .chain([Plugins::Old.folder()?])
            .collect();
        let conmon = self.root.join("usr/bin/conmon");
        let runc = runtimes::runc()?.join("runc");
        // JSON's notation of strings and of lists of strings is valid TOML.
        Ok(format!(
            "[containers]\n\
             default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [engine]\n\
             cgroup_manager = \"cgroupfs\"\n\
             events_logger = \"none\"\n\
             runtime = \"runc\"\n\
             conmon_path = {conmon}\n\
             [engine.runtimes]\n\
             runc = {runc}\n\
             [network]\n\
             network_backend = \"cni\"\n\
             network_config_dir = {networks}\n\
             cni_plugin_dirs = {plugins}\n",
            conmon = json!([conmon]),
            runc = json!([runc]),
            networks = json!(folder.join("networks")),
            plugins = json!(plugins),
        ))
    }

    /// Runs a container in a network to its end, with options of podman's, and returns what it wrote.
    ///
    /// # Errors
    /// When it fails, or podman does.
    pub fn run(&self, network: &str, options: &[&str], words: &[&str]) -> Result<String> {
        let cgroup = format!("/{}", self.cgroup);
        let mut all = vec![
            "run",
            "--rm",
            "--network",
            network,
            "--cgroup-parent",
            &cgroup,
        ];
        all.extend(options);
        all.push(IMAGE);
        all.extend(words);
        let all: Vec<_> = all.into_iter().map(OsString::from).collect();
        self.call(&all)
    }

    fn call(&self, words: &[OsString]) -> Result<String> {
        let place = |name: &str| self.shared.folder().join(name);
        let mut command = self
            .node
            .command(&self.root.join("usr/bin/podman").to_string_lossy());
        command
            .arg("--tmpdir")
            .arg(place("tmp"))
            .args(words)
            .env("CONTAINERS_CONF", place("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", place("storage.conf"))
            .env("CONTAINERS_REGISTRIES_CONF", place("registries.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = private::spawn(&self.shared, &mut command)?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!(
                "podman {words:?} failed with {}: {}{}",
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
