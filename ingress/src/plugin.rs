//! Calls of a plugin, as the specification has them (1.1.0, section 2).

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::sync::oneshot;
use towpath_cni::environment::Command;

use crate::answer::Printed;
use crate::namespace::Namespace;
use crate::request::Request;

/// Interval of checks of a running plugin.
const LOOK: Duration = Duration::from_millis(5);
/// Longest output that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// "Incompatible CNI version" (specification 1.1.0, section 5).
const INCOMPATIBLE: u32 = 1;

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
    let ended = ended.await.map_err(|error| error.to_string()).flatten();
    let (status, stdout) = match ended {
        Ok(ended) => ended,
        Err(reason) => {
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

/// The plugin's exit status and output.
fn run(
    request: &Request,
    command: Command,
    stdin: &str,
    longest: Duration,
) -> Result<(ExitStatus, Vec<u8>), String> {
    let namespace = match Namespace::new() {
        Ok(namespace) => Some(namespace),
        // The specification has DEL work without (1.1.0, section 2).
        Err(_refused) if command == Command::Del => None,
        Err(error) => return Err(format!("no network namespace for it: {error}")),
    };
    let path = namespace.as_ref().map(Namespace::path);
    let child = spawn(request, command, path.as_deref());
    let mut child = child.map_err(|error| format!("it cannot be run: {error}"))?;
    let (pipe, text) = (child.stdin.take(), stdin.to_owned());
    // A plugin that does not read it says itself what it lacks.
    thread::spawn(move || pipe.map(|mut pipe| pipe.write_all(text.as_bytes())));
    let pipe = child.stdout.take();
    let reader = thread::spawn(move || -> io::Result<Vec<u8>> {
        let mut printed = Vec::new();
        if let Some(pipe) = pipe {
            pipe.take(LONGEST).read_to_end(&mut printed)?;
        }
        Ok(printed)
    });
    let is_done = || reader.is_finished();
    let status = wait(&mut child, longest, is_done).map_err(|error| error.to_string())?;
    let Some(status) = status else {
        return Err(format!(
            "it was killed, for it took longer than {longest:?}"
        ));
    };
    let printed = reader
        .join()
        .map_err(|_panic| "the reader ended".to_owned())?;
    Ok((status, printed.map_err(|error| error.to_string())?))
}

/// Waits for the end of a plugin and of its output; `None` where it had to be killed.
fn wait(
    child: &mut Child,
    longest: Duration,
    is_read: impl Fn() -> bool,
) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + longest;
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() && is_read() {
            return Ok(ended);
        }
        if Instant::now() >= deadline {
            if let Ok(group) = i32::try_from(child.id()) {
                // All of it may have ended by now.
                killpg(Pid::from_raw(group), Signal::SIGKILL).ok();
            }
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

fn spawn(request: &Request, command: Command, netns: Option<&Path>) -> io::Result<Child> {
    let folders = std::env::join_paths(&request.folders).map_err(io::Error::other)?;
    let mut process = Process::new(&request.plugin);
    process
        .env("CNI_COMMAND", command.name())
        .env("CNI_CONTAINERID", &request.owner.container_id)
        .env("CNI_IFNAME", &request.owner.interface)
        .env("CNI_NETNS", netns.unwrap_or(Path::new("")))
        .env("CNI_ARGS", &request.args)
        .env("CNI_PATH", folders)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        // Of what it starts, nothing may live on when it is killed.
        .process_group(0);
    // SAFETY: between fork and exec this calls prctl(2) alone, which allocates nothing and takes no lock.
    unsafe {
        // An ADD that outlives the agent would come after the next agent's DEL.
        process.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?));
    }
    process.spawn()
}
