//! What runs in a guest, and reading what it prints.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::image::Image;
use super::kernel::{Files, Kernel};
use crate::artifacts::{Executable, Target};
use crate::follow::follow;
use crate::test::{Counts, Suite};

/// A test program that runs in the guest, with the parts of it that do.
struct Choice {
    package: &'static str,
    name: &'static str,
    /// Parts of tests' names; without any, all run.
    tests: &'static [&'static str],
    /// More of them, for kernels with TCX.
    with_tcx: &'static [&'static str],
    /// More of them, for the older kernels without.
    without_tcx: &'static [&'static str],
}

/// Loading and attaching, every branch of the programs, flows and the reaper, one round of real
/// packets, and what needs a module that machines lack. Tests of what is the same on every kernel
/// are left to the suite `bpf`.
const CHOICES: [Choice; 5] = [
    Choice {
        package: "towpath",
        name: "bpf",
        tests: &["lifecycle::a_restart", "lifecycle::an_attached"],
        // One load takes seconds there; the rest is the same on every kernel.
        with_tcx: &["tcx::programs_of_others", "tcx::the_link"],
        without_tcx: &[
            "clsact::a_filter_or_qdisc",
            "clsact::an_ingress_qdisc",
            "clsact::filters_of_others",
        ],
    },
    Choice {
        package: "bpf-tests",
        name: "programs",
        tests: &[
            "from_endpoint::",
            "from_network::",
            "neighbour_discovery::",
            "wire::",
        ],
        with_tcx: &["nat::flows_are_translated_there_and_back"],
        without_tcx: &["nat::flows_that_the_stack_does_not_carry"],
    },
    Choice {
        package: "bpf-tests",
        name: "programs_load",
        tests: &["displaced::echo", "sweeps::flows_go"],
        with_tcx: &[],
        without_tcx: &[],
    },
    Choice {
        package: "bpf-tests",
        name: "smoke",
        tests: &[],
        with_tcx: &[],
        without_tcx: &[],
    },
    Choice {
        package: "bpf-tests",
        name: "guest",
        tests: &[],
        with_tcx: &[],
        without_tcx: &[],
    },
];

/// An emulated processor has nothing to leak, and what kernels do against leaks costs it a quarter
/// of the time: with every system call it forgets the code that it has translated.
const KERNEL_COMMAND_LINE: &str =
    "console=ttyS0 reboot=t panic=-1 quiet loglevel=4 mitigations=off";
/// How long a guest may run, from power on to power off; what takes longer hangs. With two
/// processors to itself it takes less than half of that.
const TIME_LIMIT: Duration = Duration::from_mins(10);
/// Lines of the console that a failure shows.
const TAIL: usize = 60;

/// A test program for the guest.
pub(super) struct Program {
    /// The file, here and in the guest.
    pub(super) path: PathBuf,
    /// Folder of its package.
    folder: PathBuf,
    choice: &'static Choice,
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
    check_all_chosen(executables)?;
    CHOICES
        .iter()
        .map(|choice| {
            let (package, name) = (choice.package, choice.name);
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
                choice,
            })
        })
        .collect()
}

/// Fails when a test program of the suite is not among the choices: it would never run.
fn check_all_chosen(executables: &[Executable]) -> Result<()> {
    let is_chosen = |target: &Target| {
        let same = |choice: &Choice| choice.package == target.package && choice.name == target.name;
        CHOICES.iter().any(same)
    };
    let ours = executables.iter().filter(|built| {
        built.test && Suite::of(&built.target) == Some(Suite::Vm) && !is_chosen(&built.target)
    });
    let strays: Vec<_> = ours.map(|built| built.target.name.as_str()).collect();
    if strays.is_empty() {
        return Ok(());
    }
    bail!(
        "these test programs are for the guests alone, and no guest runs them; name them in {}: {}",
        file!(),
        strays.join(", ")
    );
}

/// The script that runs the programs in the guest.
fn script(programs: &[Program], kernel: &Kernel) -> String {
    let lines = programs.iter().map(|program| {
        let folder = program.folder.display();
        let mut tests = program.choice.tests.to_vec();
        tests.extend(if kernel.tcx {
            program.choice.with_tcx
        } else {
            program.choice.without_tcx
        });
        format!(
            "mkdir -p '{folder}'; cd '{folder}'; CARGO_MANIFEST_DIR='{folder}' '{}' {}; \
             echo \"towpath-vm: status $?\"\n",
            program.path.display(),
            tests.join(" "),
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
        .args(["-append", KERNEL_COMMAND_LINE])
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
    use super::{Console, Counts, Executable, TAIL, Target, check_all_chosen};

    fn built(name: &str) -> Executable {
        Executable {
            target: Target {
                package: "bpf-tests".to_owned(),
                kind: "test".to_owned(),
                name: name.to_owned(),
            },
            test: true,
            path: "/x".into(),
            folder: "/".into(),
        }
    }

    #[test]
    fn a_program_of_the_suite_that_no_guest_runs_is_an_error_that_names_it() {
        check_all_chosen(&[built("guest"), built("netns")]).unwrap();
        let error = check_all_chosen(&[built("guest"), built("guest_other")]).unwrap_err();
        assert!(error.to_string().ends_with(": guest_other"), "{error}");
    }

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
