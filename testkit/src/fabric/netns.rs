//! A named network namespace.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns};

use super::command;

/// A network namespace of the fabric. Dropping it removes its name; the namespace goes when the
/// last process in it has gone.
#[derive(Debug)]
pub struct Netns {
    path: PathBuf,
    file: Arc<File>,
    /// True if the namespace is foreign: its owner will remove it.
    foreign: bool,
}

impl Netns {
    /// Makes a namespace with its loopback device up.
    ///
    /// # Errors
    /// When the name is taken or the privilege is missing.
    pub fn create(name: &str) -> Result<Self> {
        command::run(Command::new("ip").args(["netns", "add", name]))
            .context("cannot make a network namespace: this needs root")?;
        let file = File::open(Self::path_of(name))?;
        let netns = Self {
            path: Self::path_of(name),
            file: Arc::new(file),
            foreign: false,
        };
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// A foreign namespace, by the path of its mount. Dropping this has no effect on it.
    ///
    /// # Errors
    /// When there is none.
    pub fn foreign(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("no {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file: Arc::new(file),
            foreign: true,
        })
    }

    /// Where a namespace of this name is mounted.
    #[must_use]
    pub fn path_of(name: &str) -> PathBuf {
        PathBuf::from("/run/netns").join(name)
    }

    /// The namespace's name.
    #[must_use]
    pub fn name(&self) -> &str {
        let name = self.path.file_name().and_then(OsStr::to_str);
        name.unwrap_or_default()
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// A command that will run inside, as long as this value lives until it starts. Only the
    /// network namespace changes: `ip netns exec` would mount a fresh /sys and hide every bpffs
    /// below it.
    ///
    /// A child that enters the namespace by itself has to be forked, which copies the page tables
    /// of the test's process. With nsenter(1) the C library can spawn it without.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        // Starting a program that is missing has to fail by its own name.
        let (Some(nsenter), Some(_)) = (command::find("nsenter"), command::find(program)) else {
            return Command::new(program);
        };
        let mut command = Command::new(nsenter);
        // The name's mount may be hidden where the child runs.
        let file = format!("/proc/{}/fd/{}", process::id(), self.file.as_raw_fd());
        command.arg(format!("--net={file}")).args(["--", program]);
        command
    }

    /// Runs a command inside, given as words.
    ///
    /// # Errors
    /// As [`command::run`].
    pub fn run(&self, line: &str) -> Result<String> {
        let mut words = line.split_whitespace();
        let program = words.next().context("a command has a first word")?;
        command::run(self.command(program).args(words))
    }

    /// Runs `ip` inside, with one command on each line; the first that fails ends it.
    ///
    /// # Errors
    /// As [`command::run`].
    pub fn ip(&self, batch: &str) -> Result<()> {
        let mut ip = self.command("ip");
        command::run_with_input(ip.args(["-batch", "-"]), batch).map(drop)
    }

    /// Runs `ip -json` inside.
    ///
    /// # Errors
    /// As [`command::run`]; when the answer is not JSON.
    pub fn ip_json(&self, line: &str) -> Result<serde_json::Value> {
        let text = command::run(
            self.command("ip")
                .arg("-json")
                .args(line.split_whitespace()),
        )?;
        if text.trim().is_empty() {
            return Ok(serde_json::Value::Array(Vec::new()));
        }
        serde_json::from_str(&text).with_context(|| format!("ip -json {line}"))
    }

    /// Runs a function in a thread inside. Sockets that it makes stay in the namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, and what the function returns.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let inside = || {
            setns(&self.file, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("cannot enter {}", self.path.display()))?;
            work()
        };
        thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// Writes sysctls, as paths below /proc/sys/net.
    ///
    /// # Errors
    /// When one does not exist or refuses the value.
    pub fn sysctls(&self, values: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            for (key, value) in values {
                fs::write(format!("/proc/sys/net/{key}"), value)
                    .with_context(|| format!("net/{key} = {value}"))?;
            }
            Ok(())
        })
    }

    /// Reads a sysctl, as a path below /proc/sys/net.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn sysctl(&self, key: &str) -> Result<String> {
        self.enter(|| {
            // In one read: a longer list of ports than it asks for is cut off.
            let mut text = vec![0; 64 * 1024];
            let file = File::open(format!("/proc/sys/net/{key}"));
            let length = file.and_then(|mut file| file.read(&mut text));
            text.truncate(length.with_context(|| format!("net/{key}"))?);
            Ok(String::from_utf8(text)?.trim().to_owned())
        })
    }

    /// Kills every process whose main thread is in a namespace.
    ///
    /// # Errors
    /// When the namespace cannot be looked at.
    pub fn kill_processes_in(name: &str) -> Result<()> {
        let pids = command::run(Command::new("ip").args(["netns", "pids", name]))?;
        for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            // The process may have ended by itself.
            let _gone = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        Ok(())
    }

    /// Removes a namespace's name.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn delete(name: &str) -> Result<()> {
        command::run(Command::new("ip").args(["netns", "del", name])).map(drop)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if self.foreign || !self.path.exists() {
            return;
        }
        let name = self.name();
        let removed = Self::kill_processes_in(name).and_then(|()| Self::delete(name));
        if let Err(error) = removed {
            eprintln!("{error:#}");
        }
    }
}
