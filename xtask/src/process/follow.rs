//! Runs a program for a limited time, and reads its output line by line.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};

/// Runs a command and hands each line of its standard output to `on_line`. Returns its status, or
/// none when the deadline passed: then it was killed.
pub(crate) fn follow(
    command: &mut Command,
    deadline: Instant,
    mut on_line: impl FnMut(&str),
) -> Result<Option<ExitStatus>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let lines = lines_of(&mut child)?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => on_line(&line),
            Err(RecvTimeoutError::Disconnected) => return Ok(Some(child.wait()?)),
            Err(RecvTimeoutError::Timeout) => {
                child.kill().context("cannot end it")?;
                child.wait()?;
                return Ok(None);
            }
        }
    }
}

/// A child's standard output, line by line, read in a thread of its own: a grandchild may hold the
/// pipe open for longer than we wait.
fn lines_of(child: &mut Child) -> Result<Receiver<String>> {
    let output = child.stdout.take().context("no standard output")?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::follow;

    fn shell(script: &str, limit: Duration) -> (Vec<String>, Option<bool>) {
        let mut lines = Vec::new();
        let deadline = Instant::now() + limit;
        let status = follow(Command::new("sh").args(["-c", script]), deadline, |line| {
            lines.push(line.to_owned());
        })
        .unwrap();
        (lines, status.map(|status| status.success()))
    }

    #[test]
    fn hands_over_lines_and_the_status() {
        let (lines, success) = shell("echo a; printf 'b\\r\\n'; exit 3", Duration::from_secs(10));
        assert_eq!(lines, ["a", "b"]);
        assert_eq!(success, Some(false));
    }

    #[test]
    fn ends_what_is_out_of_time_even_when_a_child_of_it_lives_on() {
        let started = Instant::now();
        let (lines, success) = shell("echo a; sleep 20 & wait", Duration::from_millis(300));
        assert_eq!(lines, ["a"]);
        assert_eq!(success, None);
        assert!(started.elapsed() < Duration::from_secs(15));
    }
}
