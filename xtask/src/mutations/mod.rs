//! `mutations`: takes guards of the operator away, one at a time, and sees a test fail for each.

mod blocks;
mod calls;
mod enis;
mod page;
mod tree;

use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use self::tree::Tree;
use crate::build::artifacts::{self, Executable, Metadata};
use crate::console::{self, note};

/// The time after which a test has not passed. Some mutants never end.
const LIMIT: Duration = Duration::from_mins(5);
/// The interval of checks for the end of a test.
const POLLED: Duration = Duration::from_millis(50);

/// Options of `mutations`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only mutants whose test or file has one of these texts in its name.
    names: Vec<String>,
    /// Write docs/guards.md, and test nothing.
    #[arg(long)]
    update: bool,
}

/// A fault that users of other operators met, and the guards against it.
struct Fault {
    /// The number by which tests name it; 0 for a fault that none has met.
    number: u8,
    /// The symptom.
    symptom: &'static str,
    /// The guards, each with a mutant that lacks it.
    mutants: &'static [Mutant],
}

/// A guard that is taken away.
struct Mutant {
    /// The guard.
    guard: &'static str,
    /// The file.
    file: &'static str,
    /// The code of the guard, which the file has once.
    code: &'static str,
    /// The code without it.
    without: &'static str,
    /// The test that fails then.
    test: Test,
}

/// A test, by the names of its package, of its test program (none for the library's) and of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Test {
    package: &'static str,
    program: Option<&'static str>,
    name: &'static str,
}

/// A test of whole fleets.
const fn fleet(name: &'static str) -> Test {
    Test {
        package: "towpath-fleet",
        program: Some("cases"),
        name,
    }
}

/// A test of single nodes.
const fn node(name: &'static str) -> Test {
    Test {
        package: "towpath-cloud",
        program: Some("cases"),
        name,
    }
}

/// A test of a package's program `cases`.
const fn cases(package: &'static str, name: &'static str) -> Test {
    Test {
        package,
        program: Some("cases"),
        name,
    }
}

/// A test beside the code.
const fn beside(package: &'static str, name: &'static str) -> Test {
    Test {
        package,
        program: None,
        name,
    }
}

/// Every fault.
fn faults() -> impl Iterator<Item = &'static Fault> {
    let of_enis = enis::FAULTS.iter().chain(calls::FAULTS);
    of_enis.chain(blocks::FAULTS)
}

/// The outcome of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The test failed, as it has to.
    Red,
    /// The test did not end, which fails it.
    Endless,
    /// The test passed, although the guard is missing.
    Survived,
}

/// Runs `mutations`.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.update {
        page::write()?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_chosen = |mutant: &&Mutant| {
        let has = |text: &String| mutant.file.contains(text) || mutant.test.name.contains(text);
        options.names.is_empty() || options.names.iter().any(has)
    };
    let mutants: Vec<_> = faults()
        .flat_map(|it| it.mutants)
        .filter(is_chosen)
        .collect();
    if mutants.is_empty() {
        bail!(
            "no mutant has a test or a file of these names: {:?}",
            options.names
        );
    }
    let tree = Tree::copy()?;
    note("mutations: the tests pass without a mutant");
    for mutant in &mutants {
        let outcome = outcome(&tree, mutant.test)?;
        if outcome != Outcome::Survived {
            bail!("{}: fails without a mutant", mutant.test.name);
        }
    }
    let mut survivors = 0;
    for mutant in &mutants {
        let outcome = {
            let _changed = tree.change(mutant)?;
            outcome(&tree, mutant.test).with_context(|| mutant.file)?
        };
        survivors += u32::from(outcome == Outcome::Survived);
        let word = match outcome {
            Outcome::Red => "red",
            Outcome::Endless => "endless",
            Outcome::Survived => "SURVIVED",
        };
        console::result(&format!(
            "{word:9} {}: {} ({})",
            mutant.file, mutant.guard, mutant.test.name
        ))?;
    }
    console::result(&format!("{} mutants, {survivors} survived", mutants.len()))?;
    Ok(ExitCode::from(u8::from(survivors > 0)))
}

/// Builds and runs a test.
fn outcome(tree: &Tree, test: Test) -> Result<Outcome> {
    let built = build(tree, test)?;
    let mut child = Command::new(&built.path)
        .args(["--exact", test.name])
        .current_dir(&built.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("run {}", built.path.display()))?;
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() {
                Outcome::Survived
            } else {
                Outcome::Red
            });
        }
        thread::sleep(POLLED);
    }
    child.kill()?;
    child.wait()?;
    Ok(Outcome::Endless)
}

/// Builds the program of a test.
fn build(tree: &Tree, test: Test) -> Result<Executable> {
    let metadata = Metadata::read_in(tree.root())?;
    let mut command = tree.cargo("test");
    command.args(["--no-run", "--package", test.package]);
    match test.program {
        Some(name) => command.args(["--test", name]),
        None => command.arg("--lib"),
    };
    let built = artifacts::build(&mut command, &metadata)?;
    let mut tests = built.into_iter().filter(|it| it.test);
    tests
        .next()
        .with_context(|| format!("{} has no such tests", test.package))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::{Test, faults, page};

    #[test]
    fn each_guard_is_in_its_file_once_and_each_test_exists() {
        let root = datapath_build::workspace_root();
        for mutant in faults().flat_map(|it| it.mutants) {
            let text = fs::read_to_string(root.join(mutant.file)).unwrap();
            let count = text.matches(mutant.code).count();
            assert_eq!(count, 1, "{}: {}", mutant.file, mutant.code);
            assert_ne!(mutant.code, mutant.without, "{}", mutant.file);
            let Test { package, name, .. } = mutant.test;
            let folder = root.join(package.trim_start_matches("towpath-"));
            let function = format!("fn {}(", name.rsplit("::").next().unwrap());
            let found = std::process::Command::new("grep")
                .args(["-rqF", &function])
                .arg(folder)
                .status();
            assert!(found.unwrap().success(), "{package}: {name}");
        }
    }

    #[test]
    fn no_number_is_used_twice() {
        let numbers: Vec<u8> = faults().map(|it| it.number).filter(|it| *it > 0).collect();
        let once: BTreeSet<u8> = numbers.iter().copied().collect();
        assert_eq!(once.len(), numbers.len(), "{numbers:?}");
    }

    #[test]
    fn the_page_is_that_of_the_list() {
        let file = datapath_build::workspace_root().join(page::FILE);
        let text = fs::read_to_string(file).unwrap();
        assert!(text == page::text(), "cargo xtask mutations --update");
    }
}
