//! The process at the other end of a socket that does not answer.

use std::fmt;
use std::fs;

use tokio::net::UnixStream;

/// A process that listens at a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its id.
    pub pid: i32,
    /// Its state, as `/proc` has it; `None` if it has ended.
    pub state: Option<char>,
}

impl Listener {
    /// The peer process of a connection; `None` if it is not visible to us, as in a container.
    pub(super) fn of(stream: &UnixStream) -> Option<Self> {
        let pid = stream.peer_cred().ok()?.pid()?;
        (pid > 0).then(|| Self::of_pid(pid))
    }

    /// The process with this id.
    pub(super) fn of_pid(pid: i32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let state = stat.as_deref().and_then(state);
        Self { pid, state }
    }
}

/// The state in `/proc/PID/stat`. The name before it may have spaces and brackets.
fn state(stat: &str) -> Option<char> {
    let (_, after) = stat.rsplit_once(')')?;
    after.trim_start().chars().next()
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, state } = self;
        write!(f, "process {pid}, ")?;
        let meaning = match state {
            None => return f.write_str("which has ended"),
            Some('R') => "running",
            Some('S') => "sleeping",
            Some('D') => "waiting for the kernel",
            Some('T') => "stopped",
            Some('t') => "stopped by a debugger",
            Some('Z') => "ended, its parent does not collect it",
            Some(_) => "see proc(5)",
        };
        write!(f, "state {} ({meaning})", state.unwrap_or('?'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_behind_the_name_whatever_the_name_is() {
        for (stat, expected) in [
            ("12 (towpath) S 1 12", Some('S')),
            ("12 (a) T (b) T) T 1 12", Some('T')),
            ("12 (towpath)", None),
            ("", None),
        ] {
            assert_eq!(state(stat), expected, "{stat}");
        }
    }

    #[test]
    fn a_stopped_process_is_told() {
        let text = |state| Listener { pid: 12, state }.to_string();
        assert_eq!(text(Some('T')), "process 12, state T (stopped)");
        assert_eq!(text(None), "process 12, which has ended");
    }
}
