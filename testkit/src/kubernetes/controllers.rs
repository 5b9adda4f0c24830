//! kube-controller-manager and kube-scheduler beside an API server.

use std::fs;
use std::path::PathBuf;
use std::process::Child;

use anyhow::{Context as _, Result};

use super::server::{end, log_to};
use super::{ApiServer, User, program};

/// Both of them, running. Dropping it ends them.
#[derive(Debug)]
pub struct Controllers {
    children: Vec<Child>,
    logs: Vec<PathBuf>,
}

impl Controllers {
    /// Starts them in the API server's namespace. A node that says nothing for 12 seconds is taken for
    /// gone: tests need not wait the default of 50.
    ///
    /// # Errors
    /// When they were not built, or cannot be started.
    pub fn start(server: &ApiServer) -> Result<Self> {
        let mut both = Self {
            children: Vec::new(),
            logs: Vec::new(),
        };
        let key = server.service_account_key();
        let certificate = server.certificate();
        let paths = [
            ("--service-account-private-key-file", &key),
            ("--root-ca-file", &certificate),
        ];
        let paths = paths.map(|(flag, path)| format!("{flag}={}", path.display()));
        let mut flags: Vec<&str> = paths.iter().map(String::as_str).collect();
        flags.extend([
            "--use-service-account-credentials",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=12s",
        ]);
        both.spawn(server, &User::ControllerManager, &flags)?;
        both.spawn(server, &User::Scheduler, &[])?;
        Ok(both)
    }

    fn spawn(&mut self, server: &ApiServer, user: &User, flags: &[&str]) -> Result<()> {
        let name = user.file_name();
        let log = server.folder().join(format!("{name}.log"));
        let kubeconfig = server.kubeconfig_of(user)?;
        let mut command = server.netns().command(&program(&name)?.to_string_lossy());
        for flag in [
            "kubeconfig",
            "authentication-kubeconfig",
            "authorization-kubeconfig",
        ] {
            command.arg(format!("--{flag}={}", kubeconfig.display()));
        }
        command
            .args(["--leader-elect=false", "--bind-address=127.0.0.1"])
            .arg(format!(
                "--cert-dir={}",
                server.folder().join(&name).display()
            ))
            .args(flags);
        let child = log_to(&mut command, &log)?.spawn();
        self.children
            .push(child.with_context(|| format!("cannot start {name}"))?);
        self.logs.push(log);
        Ok(())
    }

    /// The logs of both.
    #[must_use]
    pub fn log(&self) -> String {
        let logs = self
            .logs
            .iter()
            .map(|log| fs::read_to_string(log).unwrap_or_default());
        logs.collect::<Vec<_>>().join("\n----\n")
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(end);
    }
}
