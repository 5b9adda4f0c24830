//! Runs a suite's test programs, one after the other.

use std::env;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::failures::Reader;
use super::libtest::Counts;
use super::results::Results;
use super::suite::Suite;
use crate::build::artifacts::{Executable, TESTED};
use crate::console::note;
use crate::process;
use crate::process::follow::follow;

/// The number of tests that a test program runs at once; libtest reads it.
const THREADS: &str = "RUST_TEST_THREADS";

/// Runs the test programs of one suite within its time limit.
pub(super) struct Runner<'a> {
    suite: Suite,
    full: bool,
    arguments: &'a [String],
    environment: Vec<(&'static str, PathBuf)>,
    deadline: Instant,
}

impl<'a> Runner<'a> {
    /// A runner whose time begins now. `arguments` go to every test program.
    pub(super) fn new(suite: Suite, full: bool, arguments: &'a [String]) -> Self {
        Self {
            suite,
            full,
            arguments,
            environment: Vec::new(),
            deadline: Instant::now() + time_limit(full),
        }
    }

    /// Passes files to the test programs by variables of their environment.
    pub(super) fn with_files(mut self, files: Vec<(&'static str, PathBuf)>) -> Self {
        self.environment = files;
        self
    }

    /// Runs the suite's programs among `executables`.
    pub(super) fn run(&self, executables: &[Executable]) -> Results {
        executables
            .iter()
            .filter(|built| built.test)
            .filter_map(|built| {
                let selection = self.suite.selection(&built.target, self.arguments)?;
                Some((built, selection))
            })
            .map(|(built, selection)| self.run_one(built, &selection))
            .sum()
    }

    /// Runs the tests of one program whose names have one of these parts; all without any.
    pub(super) fn run_one(&self, built: &Executable, names: &[&str]) -> Results {
        let target = &built.target;
        let name = format!("{} {} {}", target.package, target.kind, target.name);
        let mut command = Command::new(&built.path);
        command
            .current_dir(&built.folder)
            .env("CARGO_MANIFEST_DIR", &built.folder)
            .envs(self.environment.clone())
            .args(self.arguments)
            .args(names)
            .args(self.extra_arguments());
        self.watch(&name, &mut command)
    }

    /// Arguments of a suite's test programs in addition to the user's: figures that tests in
    /// namespaces measure are shown even if they pass.
    fn extra_arguments(&self) -> &'static [&'static str] {
        // libtest refuses a repeated option; with `--nocapture` there is no output to show.
        let shows_output = |argument: &String| {
            ["--show-output", "--nocapture", "--no-capture"].contains(&argument.as_str())
        };
        let is_shown = self.arguments.iter().any(shows_output);
        match self.suite {
            Suite::Unit | Suite::Cloud | Suite::Bpf | Suite::Vm | Suite::Attacks => &[],
            Suite::Netns
            | Suite::Masq
            | Suite::Services
            | Suite::Api
            | Suite::Operator
            | Suite::Cluster
            | Suite::Cri => {
                if is_shown {
                    &[]
                } else {
                    &["--show-output"]
                }
            }
        }
    }

    /// Runs the examples in the documentation.
    pub(super) fn run_documentation(&self) -> Results {
        let mut command = process::locked_cargo("test");
        command
            .args(["--quiet", "--doc"])
            .args(TESTED)
            .arg("--")
            .args(self.arguments);
        self.watch("documentation", &mut command)
    }

    /// Runs one program, passes on its output, and counts.
    fn watch(&self, name: &str, command: &mut Command) -> Results {
        note(&format!("test: {name}"));
        if self.full {
            command.env("TOWPATH_FULL", "1");
        }
        let followed = self.follow(name, command);
        followed.unwrap_or_else(|error| Results::failure(name, &format!("{error:#}")))
    }

    fn follow(&self, name: &str, command: &mut Command) -> Result<Results> {
        // A tool in a folder for system programs must be found by tests too.
        let path = env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        if self.suite.waits() && env::var_os(THREADS).is_none() {
            let cores = thread::available_parallelism().map_or(1, NonZero::get);
            command.env(THREADS, (2 * cores).to_string());
        }
        let (mut counts, mut reader) = (Counts::default(), Reader::default());
        let status = follow(command, self.deadline, |line| {
            println!("{line}");
            counts = counts + Counts::parse(line).unwrap_or_default();
            reader.read(line);
        })?;
        let program = match status {
            None => Results::failure(name, &self.out_of_time(reader.unfinished())),
            Some(status) if !status.success() && counts.failed == 0 => {
                Results::failure(name, &format!("ended with {status}"))
            }
            Some(_) => Results::default(),
        };
        Ok(Results::read(name, counts, reader) + program)
    }

    fn out_of_time(&self, unfinished: &[String]) -> String {
        let suite = self.suite;
        match unfinished {
            [] => format!("suite {suite} is out of time: ended"),
            tests => format!(
                "suite {suite} is out of time: ended; running for over a minute: {}",
                tests.join(", ")
            ),
        }
    }
}

/// Time limit of a suite, after which it counts as hung.
fn time_limit(full: bool) -> Duration {
    Duration::from_secs(if full { 3600 } else { 600 })
}

#[cfg(test)]
mod tests {
    use super::{Counts, Duration, Instant, Results, Runner, Suite};
    use std::process::Command;

    fn shell(script: &str, limit: Duration) -> Results {
        let runner = Runner {
            suite: Suite::Unit,
            full: false,
            arguments: &[],
            environment: Vec::new(),
            deadline: Instant::now() + limit,
        };
        runner.watch("a script", Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn adds_up_all_summaries() {
        let script = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; \
                      echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101";
        let results = shell(script, Duration::from_secs(10));
        assert_eq!(
            results.counts,
            Counts {
                passed: 3,
                failed: 1
            }
        );
    }

    #[test]
    fn shown_output_counts_as_nothing() {
        let script = "printf 'running 1 test\\ntest a ... ok\\n\\nsuccesses:\\n\\n---- a stdout ----\\n\
                      40 kills; 2 failed; 1 passed\\n\\nsuccesses:\\n    a\\n\\n\
                      test result: ok. 1 passed; 0 failed; 0 ignored\\n'";
        let results = shell(script, Duration::from_secs(10));
        assert_eq!(
            results.counts,
            Counts {
                passed: 1,
                failed: 0
            }
        );
    }

    #[test]
    fn only_tests_in_namespaces_show_their_output_and_once() {
        let extra = |suite, arguments: &[String]| {
            Runner::new(suite, false, arguments).extra_arguments().len()
        };
        assert_eq!(extra(Suite::Netns, &["replacement".to_owned()]), 1);
        assert_eq!(extra(Suite::Netns, &["--show-output".to_owned()]), 0);
        assert_eq!(extra(Suite::Netns, &["--nocapture".to_owned()]), 0);
        assert_eq!(extra(Suite::Unit, &[]), 0);
    }

    #[test]
    fn a_failed_test_is_named_with_its_program_and_its_message() {
        let script = "printf 'test a ... FAILED\\n\\nfailures:\\n\\n---- a stdout ----\\n\
                      rows\\nthread a panicked at a.rs:1:2:\\nthe cause\\n\\n\\n\
                      failures:\\n    a\\n\\n\
                      test result: FAILED. 0 passed; 1 failed; 0 ignored\\n'; exit 101";
        let results = shell(script, Duration::from_secs(10));
        assert_eq!(results.counts, Counts::FAILURE);
        let shown: Vec<_> = results.failures.iter().map(ToString::to_string).collect();
        let expected = "FAILED a script: a\n    thread a panicked at a.rs:1:2:\n    the cause";
        assert_eq!(shown, [expected]);
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let script = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; exit 9";
        let results = shell(script, Duration::from_secs(10));
        assert_eq!(
            results.counts,
            Counts {
                passed: 2,
                failed: 1
            }
        );
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let started = Instant::now();
        let script = "echo 'test a has been running for over 60 seconds'; exec sleep 60";
        let results = shell(script, Duration::from_secs(1));
        assert_eq!(results.counts, Counts::FAILURE);
        let shown: Vec<_> = results.failures.iter().map(ToString::to_string).collect();
        let expected = "FAILED a script\n    suite unit is out of time: ended; \
                        running for over a minute: a";
        assert_eq!(shown, [expected]);
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
