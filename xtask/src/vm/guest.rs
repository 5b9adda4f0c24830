//! Runs programs in a guest, and reads its output.

use std::collections::VecDeque;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::choice::Program;
use super::image::{Image, Reporter};
use super::kernel::{Files, Kernel};
use crate::ebpf::Measured;
use crate::process::follow::follow;
use crate::test::{Counts, Failure, Reader};

/// Options of the guest's kernel, without mitigations, as an emulated processor has nothing to
/// leak.
///
/// They would cost a quarter of the time, because each system call would discard the emulator's
/// translated code.
const KERNEL_COMMAND_LINE: &str =
    "console=ttyS0 reboot=t panic=-1 quiet loglevel=4 mitigations=off";
/// Limit from power on to power off, after which the guest counts as hung. With a processor of its
/// own it takes less than half of that.
const TIME_LIMIT: Duration = Duration::from_mins(15);
/// Lines of the console that a failure shows.
const TAIL: usize = 60;

/// State of a guest's console so far.
#[derive(Default)]
pub(super) struct Console {
    /// Counts of all programs' tests.
    pub(super) counts: Counts,
    /// Failures among the tests.
    pub(super) reader: Reader,
    /// The kernel's figures for the programs, once the reporter is done.
    pub(super) measured: Option<Measured>,
    booted: bool,
    done: bool,
    /// True once the kernel's compiler (JIT) has given a program up. The interpreter runs it then,
    /// and kernels without one refuse it.
    jit_failed: bool,
    tail: VecDeque<String>,
}

/// The script that runs the programs in the guest.
fn script(programs: &[Program], kernel: &Kernel, reporter: &Reporter) -> String {
    let lines = programs.iter().filter_map(|program| program.line(kernel));
    format!(
        "#!/busybox/sh\n'{}' '{}' >/tmp/report; echo \"towpath-vm: status $?\"\n\
         echo \"towpath-vm: report $(cat /tmp/report)\"\n{}",
        reporter.program.display(),
        reporter.object.display(),
        lines.collect::<String>()
    )
}

/// Boots a kernel and runs the programs.
pub(super) fn run(
    kernel: &Kernel,
    files: &Files,
    image: &Image,
    programs: &[Program],
) -> Result<Console> {
    let script = script(programs, kernel, image.reporter());
    let archive = image.pack(kernel.name, files, &script)?;
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-M", "q35", "-accel", "tcg", "-cpu", "max"])
        .args(["-m", "1536", "-smp", "1", "-nodefaults", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio"])
        .args(["-append", KERNEL_COMMAND_LINE])
        .arg("-kernel")
        .arg(&files.kernel)
        .arg("-initrd")
        .arg(&archive);
    let mut console = Console::default();
    let started = Instant::now();
    let status = follow(&mut command, started + TIME_LIMIT, |line| {
        // The serial console has no time stamps of its own, and these show where the time goes.
        let seconds = started.elapsed().as_secs();
        eprintln!("[{} {seconds:>3}s] {line}", kernel.name);
        console.read(line);
    })?;
    if status.is_none() {
        bail!(
            "the guest is not done after {} seconds; its last words:\n{}",
            TIME_LIMIT.as_secs(),
            console.last_words()
        );
    }
    if !console.done {
        let state = if console.booted {
            "died"
        } else {
            "did not boot"
        };
        bail!(
            "the guest {state}; its last words:\n{}",
            console.last_words()
        );
    }
    Ok(console)
}

impl Console {
    fn read(&mut self, line: &str) {
        if let Some(counts) = Counts::parse(line) {
            self.counts = self.counts + counts;
        }
        let word = line.split_once("towpath-vm: ").map(|(_, word)| word);
        match word {
            Some(_) => self.reader.end(),
            None => self.reader.read(line),
        }
        match word {
            Some("done") => self.done = true,
            Some(word) if word.starts_with("booted") => self.booted = true,
            // libtest ends with 101 when tests failed: those are already counted.
            Some("status 0" | "status 101") | None => {}
            Some(word) if word.starts_with("report ") => {
                let report = word.trim_start_matches("report ");
                // The reporter's status has already reported missing figures.
                self.measured = serde_json::from_str(report).ok();
            }
            Some(word) => {
                self.counts = self.counts + Counts::FAILURE;
                self.reader
                    .add(Failure::new("a program", &format!("ended with {word}")));
            }
        }
        if line.contains("bpf_jit: ") && !self.jit_failed {
            self.jit_failed = true;
            self.counts = self.counts + Counts::FAILURE;
            self.reader.add(Failure::new("the JIT", line));
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
    }

    fn last_words(&self) -> String {
        self.tail.iter().cloned().collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::{Console, Counts, TAIL};

    fn console(lines: &[&str]) -> Console {
        let mut console = Console::default();
        for line in lines {
            console.read(line);
        }
        console
    }

    #[test]
    fn counts_tests_and_programs_that_died() {
        let console = console(&[
            "towpath-vm: booted 5.10.0",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured",
            "towpath-vm: status 101",
            "towpath-vm: status 139",
            "towpath-vm: done",
        ]);
        assert_eq!(
            console.counts,
            Counts {
                passed: 3,
                failed: 2
            }
        );
        assert!(console.booted && console.done);
    }

    #[test]
    fn a_program_that_dies_within_a_failure_hides_none_of_the_next() {
        let next = [
            "failures:",
            "    b",
            "test result: FAILED. 0 passed; 1 failed",
        ];
        let died = ["failures:", "---- a stdout ----", "panicked at a.rs:1:2:"];
        let lines = [&died[..], &["towpath-vm: status 139", "failures:"], &next].concat();
        let failures = console(&lines).reader.finish();
        let shown: Vec<_> = failures.iter().map(ToString::to_string).collect();
        let expected = [
            "FAILED a\n    panicked at a.rs:1:2:",
            "FAILED a program\n    ended with status 139",
            "FAILED b\n    no message",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_program_that_is_not_compiled_is_a_failure_once() {
        let line = "[    5.731868] bpf_jit: fatal error";
        let console = console(&[line, "test result: ok. 3 passed; 0 failed", line]);
        assert_eq!([console.counts.passed, console.counts.failed], [3, 1]);
        let failures = console.reader.finish();
        let shown: Vec<_> = failures.iter().map(ToString::to_string).collect();
        assert_eq!(shown, [format!("FAILED the JIT\n    {line}")]);
    }

    #[test]
    fn reads_the_report() {
        let report = r#"{"kernel": "6.1.0-56", "missing_features": ["tcx"], "programs": {}}"#;
        let console = console(&[&format!("towpath-vm: report {report}")]);
        assert_eq!(console.counts, Counts::default());
        assert_eq!(console.measured.unwrap().series(), "6.1");
    }

    #[test]
    fn a_panic_is_not_done() {
        let console = console(&["towpath-vm: booted 5.10.0", "Kernel panic - not syncing"]);
        assert!(!console.done);
        assert!(console.last_words().ends_with("not syncing"));
    }

    #[test]
    fn keeps_the_last_lines_only() {
        let lines = vec!["x"; TAIL * 2];
        assert_eq!(console(&lines).tail.len(), TAIL);
    }
}
