//! kubectl, which users apply the manifests with.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Result, bail};
use serde_json::Value;

use super::{ApiServer, program};
use crate::fabric::{Netns, command};

/// kubectl with the rights of an administrator.
#[derive(Debug)]
pub struct Kubectl<'a> {
    netns: &'a Netns,
    binary: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Done {
    /// True if it succeeded.
    pub success: bool,
    /// Its output, followed by its errors.
    pub text: String,
}

impl<'a> Kubectl<'a> {
    /// kubectl for a server, in a namespace that reaches it. It keeps its files in a folder.
    ///
    /// # Errors
    /// When it was not fetched.
    pub fn new(server: &ApiServer, netns: &'a Netns, home: &Path) -> Result<Self> {
        Ok(Self {
            netns,
            binary: program("kubectl")?,
            kubeconfig: server.admin_kubeconfig()?,
            home: home.to_owned(),
        })
    }

    /// Runs it.
    ///
    /// # Errors
    /// When it cannot be started; not when it fails.
    pub fn run(&self, words: &[&str]) -> Result<Done> {
        Ok(Done::of(&command::output(&mut self.command(words))?))
    }

    /// A command of it that is not started yet.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> Command {
        let mut kubectl = self.netns.command(&self.binary.to_string_lossy());
        kubectl
            .env("HOME", &self.home)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(words);
        kubectl
    }

    /// Runs it and returns its output.
    ///
    /// # Errors
    /// When it fails.
    pub fn succeed(&self, words: &[&str]) -> Result<String> {
        let done = self.run(words)?;
        if !done.success {
            bail!("kubectl {words:?}: {}", done.text);
        }
        Ok(done.text)
    }

    /// The objects that it builds from a kustomization.
    ///
    /// # Errors
    /// When it refuses the kustomization.
    pub fn build(&self, folder: &Path) -> Result<Vec<Value>> {
        let text = self.succeed(&["kustomize", &folder.to_string_lossy()])?;
        super::documents(&text)
    }
}

impl Done {
    fn of(output: &Output) -> Self {
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        Self {
            success: output.status.success(),
            text,
        }
    }
}
