//! `test`: builds every test once and runs the suites in order.

mod attacks;
mod failures;
mod fetched;
mod libtest;
mod results;
mod runner;
mod suite;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use crate::build::artifacts::{self, Executable, Metadata};
use crate::build::image;
use crate::console::{self, note};
use crate::setup::Need;
use crate::{ebpf, setup, vm};
pub(crate) use failures::{Failure, Reader};
use fetched::Fetched;
pub(crate) use libtest::Counts;
pub(crate) use results::Results;
use runner::Runner;
pub(crate) use suite::Suite;

/// Options of `test`.
#[derive(Args)]
pub(crate) struct Options {
    /// The suites to run; without any, all of them in this order but `attacks`, whose tests are theirs.
    #[arg(value_enum)]
    suites: Vec<Suite>,
    /// Run the long form of tests that have one (200 kills of the agent instead of 20, ...).
    #[arg(long)]
    full: bool,
    /// Print the results of the suite `vm` as a JSON array on standard output, and nothing else
    /// there.
    #[arg(long)]
    json: bool,
    /// Arguments for the test programs, such as a part of a test's name.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// The executables of a run.
struct Built {
    /// Test programs, and binaries that tests start.
    executables: Vec<Executable>,
    /// The test program with the feature `debug-log`.
    debug_log: Vec<Executable>,
}

/// The outcome of a suite.
struct Outcome {
    suite: Suite,
    results: Results,
    minutes: f64,
}

/// Runs `test`.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let suites = chosen(&options.suites);
    if options.json && suites != [Suite::Vm] {
        bail!("--json is for the suite vm alone: cargo xtask test vm --json");
    }
    let mut needs = vec![Need::Build];
    if suites.iter().any(|suite| suite.needs_root()) {
        setup::require_root("every suite but `unit` and `cloud`")?;
        needs.push(Need::Tests);
    }
    if suites.contains(&Suite::Cloud) {
        needs.push(Need::Boto3);
    }
    if suites.contains(&Suite::Netns) {
        needs.push(Need::Managers);
    }
    if suites.contains(&Suite::Cri) || suites.contains(&Suite::Cluster) {
        needs.push(Need::Cri);
    }
    if suites.contains(&Suite::Vm) {
        needs.push(Need::Vm);
    }
    setup::ensure(&needs)?;
    // Before the suite's time begins.
    let mut fetched = Fetched::of(&suites)?;
    let metadata = Metadata::read()?;
    suite::check_membership(&metadata.test_targets())?;
    note("test: building");
    let started = Instant::now();
    let built = build(&metadata, &suites, options)?;
    if suites.contains(&Suite::Cluster) {
        let executables = &built.executables;
        fetched.add_images(
            image::for_tests(executables, &metadata)?,
            image::operator_for_tests(executables, &metadata)?,
        );
    }
    note(&format!("test: built in {:.1} minutes", minutes(started)));
    if options.json {
        let outcome = vm::run(&built.executables)?;
        console::result(&outcome.json()?)?;
        // Standard output is the array alone.
        outcome
            .failures
            .iter()
            .for_each(|failure| eprintln!("\n{failure}"));
        return Ok(exit_code(outcome.counts()));
    }
    let outcomes: Vec<_> = suites
        .into_iter()
        .map(|suite| run_suite(suite, &built, &fetched, options))
        .collect();
    Ok(summarise(&outcomes))
}

/// The suites to run, in their order, each once.
fn chosen(requested: &[Suite]) -> Vec<Suite> {
    let all = Suite::ALL.into_iter();
    all.filter(|suite| requested.is_empty() || requested.contains(suite))
        .chain(
            requested
                .contains(&Suite::Attacks)
                .then_some(Suite::Attacks),
        )
        .collect()
}

/// Builds the test programs of suites, and the binaries that tests start.
fn build(metadata: &Metadata, suites: &[Suite], options: &Options) -> Result<Built> {
    // Before the others: both builds make a binary of the loader, and tests need the plain one.
    let debug_log = if suites.contains(&Suite::Bpf) && options.arguments.is_empty() {
        artifacts::build_debug_log(metadata)?
    } else {
        Vec::new()
    };
    let executables = artifacts::build_tests(metadata)?;
    Ok(Built {
        executables,
        debug_log,
    })
}

/// Runs a suite to its end, whatever its failures.
fn run_suite(suite: Suite, built: &Built, fetched: &Fetched, options: &Options) -> Outcome {
    note(&format!("test: suite {suite}"));
    let started = Instant::now();
    let runner = Runner::new(suite, options.full, &options.arguments);
    let executables = &built.executables;
    let mut results = match suite {
        Suite::Unit => runner.run(executables) + runner.run_documentation(),
        Suite::Bpf => {
            let mut results = runner.run(executables) + run_debug_log(&built.debug_log, options);
            if options.arguments.is_empty() {
                results = results + ebpf::check_costs(executables) + ebpf::check_paths(executables);
            }
            results
        }
        Suite::Netns | Suite::Masq => runner.run(executables),
        Suite::Attacks => attacks::run(&runner, executables),
        Suite::Cloud
        | Suite::Services
        | Suite::Api
        | Suite::Operator
        | Suite::Cluster
        | Suite::Cri => runner.with_files(fetched.of_suite(suite)).run(executables),
        Suite::Vm => run_vm(executables),
    };
    if results.counts.total() == 0 {
        results = Results::failure(&format!("suite {suite}"), "it ran no test");
    }
    Outcome {
        suite,
        results,
        minutes: minutes(started),
    }
}

/// Runs the kernel matrix and prints its table.
fn run_vm(executables: &[Executable]) -> Results {
    match vm::run(executables) {
        Ok(outcome) => {
            println!("\n{}", outcome.table());
            Results {
                counts: outcome.counts(),
                failures: outcome.failures,
            }
        }
        Err(error) => Results::failure("the kernel matrix", &format!("{error:#}")),
    }
}

/// Runs the tests that only the program with the feature has.
fn run_debug_log(executables: &[Executable], options: &Options) -> Results {
    let only = ["debug_log::".to_owned()];
    let results = Runner::new(Suite::Bpf, options.full, &only).run(executables);
    if !executables.is_empty() && results.counts.total() == 0 {
        return Results::failure("the feature debug-log", "it has no test");
    }
    results
}

/// Prints the table, every failure, each once more in one line, and the last line. If a log is
/// truncated to its end, it still contains each failed test and its cause.
fn summarise(outcomes: &[Outcome]) -> ExitCode {
    let rows: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            vec![
                outcome.suite.to_string(),
                outcome.results.counts.passed.to_string(),
                outcome.results.counts.failed.to_string(),
                format!("{:.1}", outcome.minutes),
            ]
        })
        .collect();
    let header = ["suite", "passed", "failed", "minutes"];
    println!("\n{}\n", console::table(&header, &rows));
    for outcome in outcomes {
        for failure in &outcome.results.failures {
            println!("{failure}\n");
        }
    }
    for failure in outcomes.iter().flat_map(|of| &of.results.failures) {
        println!("FAILED {}", failure.brief());
    }
    let total = outcomes.iter().fold(Counts::default(), |sum, outcome| {
        sum + outcome.results.counts
    });
    println!("{} passed, {} failed", total.passed, total.failed);
    exit_code(total)
}

fn exit_code(counts: Counts) -> ExitCode {
    if counts.failed == 0 && counts.passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn minutes(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() / 60.0
}

#[cfg(test)]
mod tests {
    use super::{Suite, chosen};

    #[test]
    fn suites_run_in_order_and_once() {
        assert_eq!(chosen(&[]), Suite::ALL);
        assert_eq!(
            chosen(&[Suite::Netns, Suite::Unit, Suite::Netns]),
            [Suite::Unit, Suite::Netns]
        );
        let attacks = [Suite::Attacks, Suite::Unit];
        assert_eq!(chosen(&attacks), [Suite::Unit, Suite::Attacks]);
    }
}
