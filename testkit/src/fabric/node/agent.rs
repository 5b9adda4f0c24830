//! The agent under test: its files, its process, and requests to it.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::document;
use crate::fabric::eventually::{check, eventually};
use crate::fabric::{Netns, command};

/// Names the agent's binary, instead of the one beside the test.
pub const BINARY_VARIABLE: &str = "TOWPATH_BIN";
/// Names the point at which the agent kills itself, if it was built with fault points.
pub const FAULT_VARIABLE: &str = "TOWPATH_FAULT";
/// The remedy when the agent's binary is missing or has no fault points.
const BUILD: &str = "build it with `cargo build -p towpath --features fault-points`";
/// Log lines: of an armed fault point, before any other line; and of a started agent.
const ARMED: &str = "kill itself at a fault point";
const RUNS: &str = "agent runs";
/// The time that the agent may take to become ready: on a busy machine, an emulated Linux 5.10
/// verifies its programs for a minute.
pub const START: Duration = Duration::from_mins(3);
/// The time that an answer of the agent may take.
const ANSWER: Duration = Duration::from_secs(25);

/// The agent's binary.
///
/// # Errors
/// When there is none: the message says how to build it.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE) {
        return Ok(path.into());
    }
    let executable = std::env::current_exe()?;
    // A test lies in target/<profile>/deps, a binary in target/<profile>.
    let found = executable
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("towpath"))
        .find(|path| path.is_file());
    found.with_context(|| format!("there is no agent to test: {BUILD}"))
}

/// The agent of one fabric.
#[derive(Debug)]
pub struct Agent {
    folder: PathBuf,
    binary: PathBuf,
    child: Option<Child>,
}

impl Agent {
    /// Writes the configuration of an agent that keeps everything below a folder. `settings` are
    /// merged into it.
    ///
    /// # Errors
    /// When the agent's binary is missing or the folder cannot be written to.
    pub fn prepare(folder: &Path, bpffs: &Path, settings: &Value) -> Result<Self> {
        let agent = Self {
            folder: folder.to_owned(),
            binary: binary()?,
            child: None,
        };
        let mut config = json!({
            "node": {"document": agent.document_path()},
            "datapath": {"pin-root": bpffs.join("towpath")},
            // Tests choose addresses, and reuse them at once.
            "ipam": {"cooldown": 0},
            "cni": {"pending-deletes": agent.pending_deletes(), "conf-dir": agent.conf_dir()},
            "state-dir": agent.state_dir(),
            "socket": agent.socket(),
            "log-level": "debug",
        });
        merge(&mut config, settings);
        fs::write(agent.config_path(), serde_json::to_string_pretty(&config)?)?;
        Ok(agent)
    }

    /// The folder in which the agent looks for configurations of other CNIs.
    #[must_use]
    pub fn conf_dir(&self) -> PathBuf {
        self.folder.join("net.d")
    }

    /// Makes the agent run with these capabilities and no others, as a container runtime does.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn confine(&mut self, capabilities: &[&str]) -> Result<()> {
        let names = capabilities.iter().map(|name| format!(",+{name}"));
        let names = format!("-all{}", names.collect::<String>()).to_lowercase();
        self.wrap(&format!(
            "exec setpriv --bounding-set={names} --inh-caps=-all --no-new-privs"
        ))
    }

    /// Makes the agent run in a PID namespace of its own, as in a pod that does not share the
    /// host's.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn hide_processes(&mut self) -> Result<()> {
        self.wrap("exec unshare --pid --fork --kill-child --mount-proc --propagation=slave")
    }

    /// Makes a shell start the agent by a command.
    fn wrap(&mut self, command: &str) -> Result<()> {
        let path = self.folder.join("wrapped");
        let script = format!("#!/bin/sh\n{command} '{}' \"$@\"\n", binary()?.display());
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        self.binary = path;
        Ok(())
    }

    /// Changes a setting in the configuration file, named by a JSON pointer; the agent reads it at
    /// its start.
    ///
    /// # Errors
    /// When the setting is not there, or the file cannot be written.
    pub fn set(&self, pointer: &str, value: &Value) -> Result<()> {
        let mut config: Value = serde_json::from_str(&fs::read_to_string(self.config_path())?)?;
        let setting = config.pointer_mut(pointer);
        *setting.with_context(|| format!("no setting {pointer}"))? = value.clone();
        fs::write(self.config_path(), serde_json::to_string_pretty(&config)?)?;
        Ok(())
    }

    /// Merges settings into the configuration file, section by section; the agent reads it at its
    /// start.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn configure(&self, settings: &Value) -> Result<()> {
        let mut config: Value = serde_json::from_str(&fs::read_to_string(self.config_path())?)?;
        merge(&mut config, settings);
        fs::write(self.config_path(), serde_json::to_string_pretty(&config)?)?;
        Ok(())
    }

    /// The configuration file.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.folder.join("config.yaml")
    }

    /// The node document, in a folder of its own.
    #[must_use]
    pub fn document_path(&self) -> PathBuf {
        self.folder.join("document").join("node.yaml")
    }

    /// The folder of the endpoint records.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// The folder of deletes that wait for the agent.
    #[must_use]
    pub fn pending_deletes(&self) -> PathBuf {
        self.folder.join("pending-deletes")
    }

    /// The agent's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("agent.sock")
    }

    /// Writes the node document.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn write_document(&self, document: &Value) -> Result<()> {
        self.write_document_text(&serde_json::to_string_pretty(document)?)
    }

    /// Writes any text as the node document.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn write_document_text(&self, text: &str) -> Result<()> {
        let path = self.document_path();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        document::write_atomically(&path, text)
    }

    /// A `towpath` command with this agent's configuration; it is not started.
    #[must_use]
    pub fn command(&self, netns: &Netns, words: &[&str]) -> Command {
        let mut command = netns.command(&self.binary.to_string_lossy());
        command.arg("--config").arg(self.config_path()).args(words);
        // A test machine may be slow.
        command.env("TOWPATH_TIMEOUT", "35s");
        command
    }

    /// Starts the agent in a namespace. Its log is appended to.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&mut self, node: &Netns, environment: &[(&str, &str)]) -> Result<()> {
        self.kill()?;
        let (armed_before, ran_before) = (self.logged(ARMED), self.logged(RUNS));
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let mut command = self.command(node, &["run"]);
        command
            .env_remove("RUST_LOG")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C of the terminal is for the owner of the fabric, which stops the agent in
            // order.
            .process_group(0);
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot start {}", self.binary.display()))?;
        self.child = Some(child);
        if environment.iter().any(|(name, _)| *name == FAULT_VARIABLE) {
            // The agent logs its fault point before anything else.
            let armed = || {
                let armed = self.logged(ARMED) > armed_before;
                let runs = self.logged(RUNS) > ran_before;
                check(armed || runs, || self.log())?;
                Ok(armed)
            };
            let (armed, _) = eventually(START, "the agent notes its fault point", armed)?;
            check(armed, || {
                format!("{} has no fault points: {BUILD}", self.binary.display())
            })?;
        }
        Ok(())
    }

    /// Number of times that a text is in the log.
    fn logged(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    /// The agent's process, if it was started.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// True if the agent's process runs.
    pub fn is_running(&mut self) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => false,
        }
    }

    /// Kills the agent with SIGKILL, if it runs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Stops the agent with SIGTERM, and returns how it ended.
    ///
    /// # Errors
    /// When it does not run, or does not end in time.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        let child = self.child.as_ref().context("the agent does not run")?;
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        self.wait_for_end(START)
    }

    /// Waits until the agent has ended by itself.
    ///
    /// # Errors
    /// When it does not run, or goes on beyond the deadline.
    pub fn wait_for_end(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let child = self.child.as_mut().context("the agent does not run")?;
        let (status, _) = eventually(deadline, "the agent ends", || {
            child.try_wait()?.ok_or_else(|| anyhow!("it still runs"))
        })?;
        self.child = None;
        Ok(status)
    }

    /// Waits until a fault point has killed the agent.
    ///
    /// # Errors
    /// When it continues, or ends for another reason.
    pub fn wait_for_fault(&mut self, deadline: Duration) -> Result<()> {
        let status = self.wait_for_end(deadline)?;
        check(status.signal() == Some(libc::SIGKILL), || {
            format!("the agent was not killed but ended with {status}")
        })
    }

    /// Leaves the agent running when this value goes.
    pub fn leave_running(&mut self) {
        self.child = None;
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("agent.log")
    }

    /// The agent's log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_else(|error| error.to_string())
    }

    /// Runs `towpath` with words, and returns its status and its output.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn cli(&self, netns: &Netns, words: &[&str]) -> Result<Output> {
        command::output(&mut self.command(netns, words))
    }

    /// Runs `towpath … -o json` and reads its answer.
    ///
    /// # Errors
    /// When it fails or does not answer JSON.
    pub fn cli_json<T: DeserializeOwned>(&self, netns: &Netns, words: &[&str]) -> Result<T> {
        let text = command::run(self.command(netns, words).args(["-o", "json"]))?;
        serde_json::from_str(&text).with_context(|| format!("towpath {words:?} -o json: {text}"))
    }

    /// Sends a request to the agent's socket, and returns the status and the body.
    ///
    /// # Errors
    /// When there is no answer, or it is not JSON.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: towpath\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = self.raw_request(format!("{head}{body}").as_bytes())?;
        let (status, body) = split_answer(&answer)?;
        let body = match body.trim() {
            "" => Value::Null,
            text => {
                serde_json::from_str(text).with_context(|| format!("{method} {path}: {text}"))?
            }
        };
        Ok((status, body))
    }

    /// Sends bytes to the agent's socket and returns everything that comes back.
    ///
    /// # Errors
    /// When the socket has no listener, or the answer does not end in time.
    pub fn raw_request(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut stream = UnixStream::connect(self.socket())
            .with_context(|| format!("no agent at {}", self.socket().display()))?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        // The agent may answer and close before it has read everything.
        let _refused_early = stream.write_all(bytes);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }

    /// As [`Self::request`], for a body that the answer must have.
    ///
    /// # Errors
    /// When the agent refuses: its answer.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let (status, answer) = self.request(method, path, body)?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: {status} {answer}");
        }
        Ok(answer)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("cannot stop the agent: {error:#}");
        }
    }
}

fn split_answer(answer: &[u8]) -> Result<(u16, String)> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").context("an HTTP answer")?;
    let status = head
        .split_whitespace()
        .nth(1)
        .context("an HTTP status line")?;
    Ok((status.parse()?, body.to_owned()))
}

/// Merges settings into others, section by section.
pub(crate) fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_merged_by_section() {
        let mut config = json!({"datapath": {"pin-root": "/x"}, "socket": "/s"});
        merge(&mut config, &json!({"datapath": {"attach": "clsact"}}));
        let merged = json!({"datapath": {"pin-root": "/x", "attach": "clsact"}, "socket": "/s"});
        assert_eq!(config, merged);
    }

    #[test]
    fn answers_are_split_at_the_empty_line() {
        let (status, body) = split_answer(b"HTTP/1.1 404 Not Found\r\na: b\r\n\r\n{}").unwrap();
        assert_eq!((status, body.as_str()), (404, "{}"));
        assert!(split_answer(b"nonsense").is_err());
    }
}
