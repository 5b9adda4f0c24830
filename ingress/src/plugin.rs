//! Calls of a plugin, as the specification has them (1.1.0, section 2).

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getppid};
use tokio::sync::oneshot;
use towpath_cni::request::environment::Command;

use crate::answer::Printed;
use crate::namespace::{Inherited, Namespace};
use crate::output::Output;
use crate::request::Request;

/// Interval of checks of a running plugin.
const LOOK: Duration = Duration::from_millis(5);
/// Longest wait for the end of the output once the plugin has ended. A child process may complete
/// the output, or hold it open for as long as it lives.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// "Incompatible CNI version" (specification 1.1.0, section 5).
const INCOMPATIBLE: u32 = 1;
/// Failures of the call itself (specification 1.1.0, section 5): environment, I/O, two of the
/// input, and "try again later".
const OF_THE_CALL: [u32; 5] = [4, 5, 6, 7, 11];

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The plugin says so itself.
    #[error("{} {command} failed: {}{}", plugin, printed.msg, more(&printed.details))]
    Said {
        plugin: String,
        command: Command,
        printed: Printed,
    },
    /// It was not started, so it has changed nothing.
    #[error("{plugin} {command} failed: it cannot be run: {error}")]
    NotStarted {
        plugin: String,
        command: Command,
        error: io::Error,
    },
    /// It did not get so far, or says nothing that can be read.
    #[error("{plugin} {command} failed: {reason}")]
    Broken {
        plugin: String,
        command: Command,
        reason: String,
    },
}

impl CallError {
    /// True if the plugin has no such command for this version of the specification.
    pub(crate) fn is_unknown_command(&self) -> bool {
        matches!(self, Self::Said { printed, .. } if printed.code == INCOMPATIBLE)
    }

    /// True for CHECK if the plugin has found a fault in the addresses.
    pub(crate) fn is_of_addresses(&self) -> bool {
        let code = match self {
            Self::Said { printed, .. } => printed.code,
            Self::NotStarted { .. } | Self::Broken { .. } => return false,
        };
        code != INCOMPATIBLE && !OF_THE_CALL.contains(&code)
    }
}

fn more(details: &str) -> String {
    if details.is_empty() {
        String::new()
    } else {
        format!(" ({details})")
    }
}

/// Calls a plugin in a network namespace of its own, and returns its output. A plugin that exceeds
/// the timeout is killed with all its child processes.
///
/// # Errors
/// The reason for a failed call.
pub(crate) async fn call(
    request: &Request,
    command: Command,
    stdin: &str,
    longest: Duration,
) -> Result<Vec<u8>, CallError> {
    let plugin = request.plugin.display().to_string();
    let (request, stdin) = (request.clone(), stdin.to_owned());
    let (done, ended) = oneshot::channel();
    // The process does not wait for this thread when it ends, and the plugin ends with it.
    thread::spawn(move || done.send(run(&request, command, &stdin, longest)));
    let lost = |error: oneshot::error::RecvError| Broken::Later(error.to_string());
    let (status, stdout) = match ended.await.map_err(lost).flatten() {
        Ok(ended) => ended,
        Err(Broken::AtStart(error)) => {
            return Err(CallError::NotStarted {
                plugin,
                command,
                error,
            });
        }
        Err(Broken::Later(reason)) => {
            return Err(CallError::Broken {
                plugin,
                command,
                reason,
            });
        }
    };
    if status.success() {
        return Ok(stdout);
    }
    Err(match serde_json::from_slice(&stdout) {
        Ok(printed) => CallError::Said {
            plugin,
            command,
            printed,
        },
        Err(_no_failure) => CallError::Broken {
            plugin,
            command,
            reason: format!("it ended with {status}"),
        },
    })
}

/// The end of a call without an exit status.
enum Broken {
    AtStart(io::Error),
    Later(String),
}

/// The plugin's exit status and output.
fn run(
    request: &Request,
    command: Command,
    stdin: &str,
    longest: Duration,
) -> Result<(ExitStatus, Vec<u8>), Broken> {
    let namespace = match Namespace::new() {
        Ok(namespace) => Some(namespace),
        // The specification has DEL work without (1.1.0, section 2).
        Err(_refused) if command == Command::Del => None,
        Err(error) => {
            let reason = format!("cannot make a network namespace for it: {error}");
            return Err(Broken::Later(reason));
        }
    };
    let mut child = spawn(request, command, namespace.as_ref()).map_err(Broken::AtStart)?;
    let (pipe, text) = (child.stdin.take(), stdin.to_owned());
    // A plugin that does not read it says itself what it lacks.
    thread::spawn(move || pipe.map(|mut pipe| pipe.write_all(text.as_bytes())));
    let output = child.stdout.take();
    let output = output.ok_or_else(|| "its output is no pipe".to_owned());
    let mut output = output.and_then(Output::new).map_err(Broken::Later)?;
    let ended = wait(&mut child, &mut output, longest);
    if ended.is_err() {
        kill(&mut child);
    }
    Ok((ended.map_err(Broken::Later)?, output.printed))
}

/// Waits for the end of a plugin, and briefly for that of its output.
fn wait(child: &mut Child, output: &mut Output, longest: Duration) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + longest;
    let mut last = deadline;
    loop {
        let ended = child.try_wait().map_err(|error| error.to_string())?;
        // Read after it: what an ended plugin printed is then complete.
        let is_read = output.read()?;
        let now = Instant::now();
        if let Some(status) = ended {
            last = last.min(now + EXIT_TIMEOUT);
            if is_read || now >= last {
                return Ok(status);
            }
        } else if now >= deadline {
            return Err(format!("it was killed after {longest:?}"));
        }
        thread::sleep(LOOK);
    }
}

/// Kills a plugin with all its child processes.
fn kill(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        // All of it may have ended by now.
        killpg(Pid::from_raw(group), Signal::SIGKILL).ok();
    }
    // It fails only for a process that is waited for already.
    child.wait().ok();
}

fn spawn(request: &Request, command: Command, netns: Option<&Namespace>) -> io::Result<Child> {
    let path = netns.map(Namespace::path).unwrap_or_default();
    let folders = std::env::join_paths(&request.folders).map_err(io::Error::other)?;
    let mut process = Process::new(&request.plugin);
    process
        .env("CNI_COMMAND", command.name())
        .env("CNI_CONTAINERID", &request.owner.container_id)
        .env("CNI_IFNAME", &request.owner.interface)
        .env("CNI_NETNS", path)
        .env("CNI_ARGS", &request.args)
        .env("CNI_PATH", folders)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        // Of what it starts, nothing may live on when it is killed.
        .process_group(0);
    let agent = Pid::this();
    let inherited = netns.map(Namespace::inherited);
    // SAFETY: between fork and exec this calls fcntl(2), prctl(2) and getppid(2) alone, which
    // allocate nothing and take no lock.
    unsafe {
        // An ADD that outlives the agent would come after the next agent's DEL.
        process.pre_exec(move || {
            inherited.as_ref().map_or(Ok(()), Inherited::keep)?;
            set_pdeathsig(Signal::SIGKILL)?;
            // The agent may have ended before the signal was set.
            if getppid() == agent {
                Ok(())
            } else {
                Err(Errno::ESRCH.into())
            }
        });
    }
    process.spawn()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::network::Network;

    const PLUGIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plugin/fake-ipam");

    /// The agent's files are closed a moment before its plugin is killed.
    #[test]
    fn a_plugin_keeps_its_namespace_when_the_agent_closes_it() {
        let folder = tempfile::tempdir().unwrap();
        symlink(PLUGIN, folder.path().join("fake-ipam")).unwrap();
        let network = Network {
            name: "pods".to_owned(),
            plugin: "fake-ipam".to_owned(),
            config: String::new(),
        };
        let request = Request::new("one", &network, &[folder.path().to_owned()]);
        let namespace = Namespace::new().unwrap();
        // It reads all of its input before it looks for the namespace.
        let mut child = spawn(&request, Command::Del, Some(&namespace)).unwrap();
        drop(namespace);
        drop(child.stdin.take());
        child.wait().unwrap();
        let calls = fs::read_to_string(folder.path().join("fake-ipam.d/calls")).unwrap();
        assert!(calls.contains(" netns=other "), "{calls}");
    }
}
