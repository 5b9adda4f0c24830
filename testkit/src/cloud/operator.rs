//! `towpath-operator` as a process.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::CLUSTER;
use crate::fabric::Netns;
use crate::fabric::agent::merge;
use crate::fabric::eventually::{check, eventually};

/// A deadline for what takes seconds.
const SOON: Duration = Duration::from_mins(1);
/// The usual access key of an operator, and the secret of every key.
const KEY: &str = "any";
/// The first port of operators.
const PORT: u16 = 9973;

/// The description of an operator to start.
#[derive(Clone, Copy, Debug)]
pub struct OperatorSpec<'a> {
    /// The network namespace that it runs in.
    pub netns: &'a Netns,
    /// The folder of its configuration and its log.
    pub folder: &'a Path,
    /// Its number: each in a namespace has another.
    pub number: u16,
    /// The API server, and its rights there.
    pub kubeconfig: &'a Path,
    /// EC2's URL.
    pub url: &'a str,
    /// Its access key of EC2. The secret of each is `any`.
    pub key: &'a str,
}

/// A running operator. Dropping it kills it.
#[derive(Debug)]
pub struct Operator {
    child: Child,
    address: SocketAddr,
    config: PathBuf,
    log: PathBuf,
    netns: Netns,
}

/// The end of a command.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub error: String,
}

impl Operator {
    /// Starts an operator with these settings.
    ///
    /// # Errors
    /// When it was not built, or cannot be started.
    pub fn start(spec: OperatorSpec<'_>, settings: &Value) -> Result<Self> {
        let OperatorSpec {
            netns,
            folder,
            number,
            ..
        } = spec;
        let address = SocketAddr::from(([127, 0, 0, 1], PORT + number));
        let mut config = json!({
            "cluster-name": CLUSTER,
            "log-level": "debug",
            "kubernetes": {"kubeconfig": spec.kubeconfig},
            "ec2": {"region": "eu-central-1", "endpoint": spec.url},
            "http": {"address": address},
        });
        merge(&mut config, settings);
        let path = |suffix: &str| folder.join(format!("operator{number}.{suffix}"));
        fs::write(path("yaml"), serde_json::to_string_pretty(&config)?)?;
        let (config, log) = (path("yaml"), path("log"));
        let mut command = command(netns, &config)?;
        command
            .arg("run")
            .env("AWS_ACCESS_KEY_ID", spec.key)
            .env("POD_NAME", format!("operator-{number}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().create(true).append(true).open(&log)?);
        Ok(Self {
            child: command.spawn().context("start the operator")?,
            address,
            config,
            log,
            netns: Netns::foreign(&netns.path())?,
        })
    }

    /// Kills it, as a node that dies does.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop).context("wait for the operator")
    }

    /// Ends it by SIGTERM. Returns true if it ended well.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub fn stop(mut self) -> Result<bool> {
        let pid = self.child.id().to_string();
        self.netns.run(&format!("kill -TERM {pid}"))?;
        Ok(self.child.wait()?.success())
    }

    /// Sends it a signal: STOP pauses it, and CONT wakes it.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn signal(&self, name: &str) -> Result<()> {
        let pid = self.child.id();
        self.netns.run(&format!("kill -{name} {pid}")).map(drop)
    }

    /// The output of its command line.
    ///
    /// # Errors
    /// When it fails: what it says.
    pub fn ask(&self, arguments: &str) -> Result<String> {
        let binary = binary()?;
        let line = format!(
            "{} {arguments} --address {}",
            binary.display(),
            self.address
        );
        self.netns.run(&line)
    }

    /// Runs a command with the configuration of this operator, which need not run.
    ///
    /// # Errors
    /// When it cannot be started, or writes no UTF-8.
    pub fn call(&self, arguments: &str) -> Result<Ended> {
        self.call_as(KEY, arguments)
    }

    /// As [`Self::call`], with another access key of EC2.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_as(&self, key: &str, arguments: &str) -> Result<Ended> {
        let mut command = command(&self.netns, &self.config)?;
        command.env("AWS_ACCESS_KEY_ID", key);
        let ended = command.args(arguments.split_whitespace()).output()?;
        Ok(Ended {
            code: ended.status.code(),
            output: String::from_utf8(ended.stdout)?,
            error: String::from_utf8(ended.stderr)?,
        })
    }

    /// The answer to a path.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self, path: &str) -> Result<String> {
        self.netns.run(&format!(
            "curl -sS --max-time 5 http://{}{path}",
            self.address
        ))
    }

    /// The status code and the text of the answer to a path.
    ///
    /// # Errors
    /// When there is none.
    pub fn probe(&self, path: &str) -> Result<(u16, String)> {
        let answer = self.netns.run(&format!(
            "curl -sS --max-time 5 --write-out \\n%{{http_code}} http://{}{path}",
            self.address
        ))?;
        let (text, code) = answer.trim_end().rsplit_once('\n').context("no code")?;
        Ok((
            code.parse().context(answer.clone())?,
            text.trim_end().to_owned(),
        ))
    }

    /// Its resident memory, in KiB.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resident(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// The most memory that was resident so far, in KiB.
    ///
    /// # Errors
    /// When it has ended.
    pub fn peak(&self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|line| line.split_whitespace().next());
        let number = number.with_context(|| format!("there is no {field}"))?;
        Ok(number.parse()?)
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string())
    }

    /// Waits until its log has all of these in one line.
    ///
    /// # Errors
    /// When it has no such line in time.
    pub fn log_has(&self, parts: &[&str]) -> Result<()> {
        let look = || {
            let log = fs::read_to_string(&self.log)?;
            let has = |line: &str| parts.iter().all(|part| line.contains(part));
            check(log.lines().any(has), || {
                format!("no line has {parts:?}: {log}")
            })
        };
        eventually(SOON, "the log has a line", look).map(drop)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// A command of the operator's binary, with a configuration and credentials of EC2.
fn command(netns: &Netns, config: &Path) -> Result<Command> {
    let mut command = netns.command(binary()?.to_str().context("a path is UTF-8")?);
    command
        .arg("--config")
        .arg(config)
        .env("AWS_SECRET_ACCESS_KEY", KEY);
    Ok(command)
}

/// The operator's binary, beside the test.
fn binary() -> Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let folders = executable.ancestors().skip(1).take(2);
    let found = folders
        .map(|folder| folder.join("towpath-operator"))
        .find(|it| it.is_file());
    found.context(
        "there is no towpath-operator to test: build it with `cargo build -p towpath-operator \
         --features sdk`",
    )
}
