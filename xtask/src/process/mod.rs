//! Running other programs.

pub(super) mod follow;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// The cargo that runs us, in the workspace's root.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command
        .arg(subcommand)
        .current_dir(datapath_build::workspace_root());
    // `cargo run` describes this package to us. Build scripts that look at that would run again,
    // and all that depends on them be built again, whenever cargo is called by hand in between.
    let described = env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    });
    for name in described {
        command.env_remove(name);
    }
    command
}

/// As [`cargo`], with the versions of `Cargo.lock` or not at all.
pub(crate) fn locked_cargo(subcommand: &str) -> Command {
    let mut command = cargo(subcommand);
    command.arg("--locked");
    command
}

/// Runs a command to its end with our standard error as its output, so that standard output keeps
/// results only.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    command.stdout(std::io::stderr());
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", words(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", words(command));
    }
    Ok(())
}

/// Runs a command to its end and calls `on_line` for each line of its standard error, which is shown
/// only when the command fails.
pub(crate) fn run_with_lines(command: &mut Command, mut on_line: impl FnMut()) -> Result<()> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn();
    let mut child = child.with_context(|| format!("cannot run {}", words(command)))?;
    let mut text = String::new();
    let lines = child.stderr.take().context("no standard error")?;
    for line in BufReader::new(lines).lines() {
        let line = line?;
        text.push_str(&line);
        text.push('\n');
        on_line();
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{} failed ({status}):\n{text}", words(command));
    }
    Ok(())
}

/// Runs a command to its end and returns its standard output; its standard error is ours.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", words(command)))?;
    if !output.status.success() {
        bail!("{} failed ({})", words(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} printed no UTF-8", words(command)))
}

/// True if a command runs and succeeds; it prints nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Where a program is: in the path, or in the folders of system programs, which an ordinary user's
/// path lacks.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| is_executable(file))
}

/// True if we are root.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// A command as one would type it.
fn words(command: &Command) -> String {
    let mut words = vec![command.get_program()];
    words.extend(command.get_args());
    words
        .into_iter()
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::{find, output, succeeds};
    use std::process::Command;

    #[test]
    fn finds_programs_that_exist_only() {
        assert!(find("sh").is_some());
        assert!(find("towpath-no-such-program").is_none());
    }

    #[test]
    fn a_failed_command_names_itself() {
        let error = output(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(
            error.to_string().starts_with("sh -c exit 3 failed"),
            "{error}"
        );
        assert!(!succeeds(Command::new("sh").args(["-c", "exit 3"])));
    }
}
