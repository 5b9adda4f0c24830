//! Runs the tools that the fabric is built and looked at with.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::eventually::eventually;

/// Debian's packages of the tools that are used, for the message when one is missing.
const PACKAGES: &[(&str, &str)] = &[
    ("bpftool", "bpftool"),
    ("curl", "curl"),
    ("ethtool", "ethtool"),
    ("ip", "iproute2"),
    ("ip6tables-legacy", "iptables"),
    ("ip6tables-nft", "iptables"),
    ("iptables-legacy", "iptables"),
    ("iptables-nft", "iptables"),
    ("iperf3", "iperf3"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("ping", "iputils-ping"),
    ("ss", "iproute2"),
    ("tc", "iproute2"),
    ("traceroute", "traceroute"),
    ("udevadm", "udev"),
];

/// Runs a command to its end and returns what it wrote to stdout.
///
/// # Errors
/// When it cannot be started (the message names the package) or fails (the message has its
/// stderr).
pub fn run(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        bail!(
            "{command:?} failed with {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end(),
            String::from_utf8_lossy(&output.stdout).trim_end(),
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command to its end, whatever that end is.
///
/// # Errors
/// When it cannot be started; the message names the package to install.
pub fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null());
    command
        .output()
        .map_err(|error| cannot_start(command, error))
}

/// The time that a command may take that has to end by itself.
const ENDS: Duration = Duration::from_secs(30);

/// Runs a command that is to end by itself, where a fault would have it go on.
///
/// # Errors
/// When it cannot be started, or goes on; then it is killed.
pub fn ends(command: &mut Command) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_start(command, error))?;
    let ended = || match child.try_wait()? {
        Some(_status) => Ok(()),
        None => bail!("it goes on"),
    };
    let is_over = eventually(ENDS, "the command ends", ended);
    if is_over.is_err() {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    let wrote = || {
        let wrote = String::from_utf8_lossy(&output.stderr);
        format!("{command:?} wrote: {wrote}")
    };
    is_over.with_context(wrote)?;
    Ok(output)
}

/// Runs a command with a text on its stdin.
///
/// # Errors
/// As [`run`].
pub fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_start(command, error))?;
    let mut stdin = child.stdin.take().context("the child has a stdin")?;
    let written = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() || written.is_err() {
        bail!(
            "{command:?} failed with {}: {}\nits input was:\n{input}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end(),
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The file of a program: a path, or a name that a folder of `PATH` has.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = Path::new(program);
    if program.contains('/') {
        return path.exists().then(|| path.to_owned());
    }
    let folders = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&folders).map(|folder| folder.join(program));
    files.find(|file| file.exists())
}

fn cannot_start(command: &Command, error: std::io::Error) -> anyhow::Error {
    let program = command.get_program().to_string_lossy().into_owned();
    let package = PACKAGES.iter().find(|(name, _)| *name == program);
    match (error.kind(), package) {
        (ErrorKind::NotFound, Some((_, package))) => {
            anyhow::anyhow!("{program} is missing: install it with `apt-get install {package}`")
        }
        _ => anyhow::Error::new(error).context(format!("cannot start {program}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_tells_what_the_tool_said() {
        let error = run(Command::new("ip").args(["link", "show", "no-such-dev"])).unwrap_err();
        assert!(error.to_string().contains("no-such-dev"), "{error}");
    }

    #[test]
    fn a_command_that_ends_says_how() {
        let mut ended = Command::new("sh");
        let ended = ends(ended.args(["-c", "echo no >&2; exit 3"])).unwrap();
        assert_eq!(
            (ended.status.code(), &ended.stderr[..]),
            (Some(3), &b"no\n"[..])
        );
    }

    #[test]
    fn a_missing_tool_names_its_package() {
        let error = cannot_start(&Command::new("nft"), ErrorKind::NotFound.into());
        assert!(error.to_string().contains("apt-get install nftables"));
    }
}
