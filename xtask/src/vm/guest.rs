//! What runs in a guest, and reading what it prints.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::image::Image;
use super::kernel::{Files, Kernel};
use crate::artifacts::Executable;
use crate::follow::follow;
use crate::test::Counts;

/// Test programs that run in the guest: package, name of the target, what to hand to it. Loading
/// and attaching, every branch of the programs, and one round of real packets.
const PROGRAMS: &[(&str, &str, &[&str])] = &[
    ("towpath", "bpf", &[]),
    ("bpf-tests", "programs", &[]),
    ("bpf-tests", "netns", &["smoke"]),
];
/// What leaves out the tests of TCX, on kernels without it.
const WITHOUT_TCX: &[&str] = &["--skip", "tcx::"];

/// How long a guest may run, from power on to power off.
const TIME_LIMIT: Duration = Duration::from_mins(2);
/// Lines of the console that a failure shows.
const TAIL: usize = 60;

/// A test program for the guest.
pub(super) struct Program {
    /// The file, here and in the guest.
    pub(super) path: PathBuf,
    /// Folder of its package.
    folder: PathBuf,
    arguments: &'static [&'static str],
}

/// What a guest's console said so far.
#[derive(Default)]
struct Console {
    counts: Counts,
    booted: bool,
    done: bool,
    tail: VecDeque<String>,
}

/// The guest's programs among what was built.
pub(super) fn programs(executables: &[Executable]) -> Result<Vec<Program>> {
    PROGRAMS
        .iter()
        .map(|&(package, name, arguments)| {
            let built = executables
                .iter()
                .find(|built| {
                    built.test
                        && built.target.kind == "test"
                        && built.target.package == package
                        && built.target.name == name
                })
                .with_context(|| format!("{package} has no test program {name}"))?;
            Ok(Program {
                path: built.path.clone(),
                folder: built.folder.clone(),
                arguments,
            })
        })
        .collect()
}

/// The script that runs the programs in the guest.
fn script(programs: &[Program], kernel: &Kernel) -> String {
    let skip = if kernel.tcx { &[] } else { WITHOUT_TCX };
    let lines = programs.iter().map(|program| {
        let folder = program.folder.display();
        let arguments: Vec<_> = program.arguments.iter().chain(skip).copied().collect();
        format!(
            "mkdir -p '{folder}'; cd '{folder}'; CARGO_MANIFEST_DIR='{folder}' '{}' {}; \
             echo \"towpath-vm: status $?\"\n",
            program.path.display(),
            arguments.join(" "),
        )
    });
    format!("#!/busybox/sh\n{}", lines.collect::<String>())
}

/// Boots a kernel and runs the programs.
pub(super) fn run(
    kernel: &Kernel,
    files: &Files,
    image: &Image,
    programs: &[Program],
) -> Result<Counts> {
    let archive = image.pack(files, &script(programs, kernel))?;
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"])
        .args(["-m", "1536", "-smp", "2", "-nodefaults", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio"])
        .args([
            "-append",
            "console=ttyS0 reboot=t panic=-1 quiet loglevel=4",
        ])
        .arg("-kernel")
        .arg(&files.kernel)
        .arg("-initrd")
        .arg(&archive);
    let mut console = Console::default();
    let status = follow(&mut command, Instant::now() + TIME_LIMIT, |line| {
        println!("[{}] {line}", kernel.name);
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
    Ok(console.counts)
}

impl Console {
    fn read(&mut self, line: &str) {
        if let Some(counts) = Counts::parse(line) {
            self.counts = self.counts + counts;
        }
        match line.split_once("towpath-vm: ").map(|(_, word)| word) {
            Some("done") => self.done = true,
            Some(word) if word.starts_with("booted") => self.booted = true,
            // libtest ends with 101 when tests failed: those are counted already.
            Some("status 0" | "status 101") | None => {}
            Some(_) => self.counts = self.counts + Counts::FAILURE,
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
