//! A delegated IPAM plugin, called as the specification says (1.1.0, section 4): looked for in
//! `CNI_PATH`, with the configuration and the environment that we got.

use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output, Stdio};

use serde::Deserialize;
use serde_json::Value;

use crate::failure::{Code, Failure};
use crate::log;
use crate::request::config::PreviousResult;
use crate::request::environment::Command;

/// A plugin that was found.
#[derive(Clone, Debug)]
pub struct Delegate {
    name: String,
    path: PathBuf,
}

/// Error that a plugin prints when it fails.
#[derive(Debug, Deserialize)]
struct Printed {
    code: u32,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

impl Delegate {
    /// Looks for the plugin.
    ///
    /// # Errors
    /// When no folder has an executable of that name.
    pub fn find(name: &str, folders: &[PathBuf]) -> Result<Self, Failure> {
        let is_program = |path: &PathBuf| {
            path.metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        };
        let mut paths = folders.iter().map(|folder| folder.join(name));
        let path = paths.find(is_program).ok_or_else(|| {
            let folders: Vec<_> = folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            let message = format!("ipam.type is {name:?}: there is no such plugin");
            Failure::new(Code::Delegate, message)
                .with_details(format!("CNI_PATH is {}", folders.join(":")))
        })?;
        Ok(Self {
            name: name.to_owned(),
            path,
        })
    }

    /// ADD: the addresses. A plugin that failed may have reserved some.
    ///
    /// # Errors
    /// The plugin's own failure, or that it could not be run.
    pub fn add(&self, config: &[u8]) -> Result<PreviousResult, Failure> {
        let printed = self.run(Command::Add, config)?;
        let result = match serde_json::from_slice(&printed) {
            Ok(Value::Object(object)) => PreviousResult::new(object, "")?,
            _ => return Err(self.failed("its result is not a JSON object")),
        };
        if result.list("ips").is_empty() {
            return Err(self.failed("its result has no ips"));
        }
        Ok(result)
    }

    /// Deletes the addresses after another failure; the caller gets that failure, so an error here
    /// is only logged.
    pub fn undo(&self, config: &[u8]) {
        if let Err(failure) = self.call(Command::Del, config) {
            log::warn(&format!("after a failed ADD: {failure}"));
        }
    }

    /// Any other command, which answers nothing.
    ///
    /// # Errors
    /// As for [`Self::add`].
    pub fn call(&self, command: Command, config: &[u8]) -> Result<(), Failure> {
        self.run(command, config).map(|_nothing| ())
    }

    fn run(&self, command: Command, config: &[u8]) -> Result<Vec<u8>, Failure> {
        let output = self.execute(command, config).map_err(|error| {
            self.failed(&format!("{} cannot be run: {error}", self.path.display()))
        })?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        match serde_json::from_slice::<Printed>(&output.stdout) {
            Ok(Printed { code, msg, details }) => {
                let message = format!("{}: {msg}", self.name);
                Err(Failure::new(Code::Other(code), message).with_details(details))
            }
            Err(_no_failure) => Err(self.failed(&format!("it ended with {}", output.status))),
        }
    }

    fn execute(&self, command: Command, config: &[u8]) -> io::Result<Output> {
        let mut child = Process::new(&self.path)
            .env("CNI_COMMAND", command.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin that does not read it says itself what it lacks.
            stdin.write_all(config).ok();
        }
        child.wait_with_output()
    }

    fn failed(&self, reason: &str) -> Failure {
        let message = format!("the IPAM plugin {} failed", self.name);
        Failure::new(Code::Delegate, message).with_details(reason)
    }
}

/// True if two paths name one file, such as a namespace by two paths to it; by their text where
/// one is not there.
#[must_use]
pub fn is_same_file(left: &Path, right: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    match (left.metadata(), right.metadata()) {
        (Ok(left), Ok(right)) => (left.dev(), left.ino()) == (right.dev(), right.ino()),
        _ => left == right,
    }
}
