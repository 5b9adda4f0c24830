//! Warnings, and a line per call in the configured file: runtimes show failures, and rarely
//! successes.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Writes a warning to standard error. If that fails, the call goes on.
pub(crate) fn warn(message: &str) {
    writeln!(io::stderr(), "towpath-cni: {message}").ok();
}

/// Notes what became of a call. A file that cannot be written stops no pod.
pub(crate) fn note(file: &Path, call: &str, outcome: &str, took: Duration) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    // A newline in an argument must not look like a second line.
    let outcome: String = outcome
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let line = format!(
        "{}.{:03} {call} {outcome} ({}.{:03} ms)\n",
        now.as_secs(),
        now.subsec_millis(),
        took.as_millis(),
        took.subsec_micros() % 1000
    );
    let written = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        warn(&format!("{}: {error}", file.display()));
    }
}
