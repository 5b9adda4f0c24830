//! `bench --compare`: this working tree beside a commit, in turns.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use super::results::{Run, compare};
use super::{Group, Options, build, command};
use crate::console::{self, note};
use crate::process;

/// Groups that are compared if none is named: short ones, whose figures are of one build alone.
const USUAL: [Group; 2] = [Group::Program, Group::Agent];

/// A commit that is checked out beside this tree, until this value ends.
struct CheckedOut {
    root: PathBuf,
}

impl CheckedOut {
    fn new(revision: &str) -> Result<Self> {
        let commit = ["rev-parse", "--verify", "--quiet"];
        let mut parse = git();
        parse.args(commit).arg(format!("{revision}^{{commit}}"));
        let id = process::output(&mut parse)
            .with_context(|| format!("--compare: {revision:?} is no commit"))?;
        let root = datapath_build::workspace_root()
            .join("target/compare")
            .join(id.trim());
        // An earlier run that was killed may have left the folder.
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| root.display().to_string())?;
        }
        process::run(git().args(["worktree", "prune"]))?;
        let add = ["worktree", "add", "--quiet", "--detach"];
        process::run(git().args(add).arg(&root).arg(id.trim()))?;
        Ok(Self { root })
    }
}

impl Drop for CheckedOut {
    fn drop(&mut self) {
        let remove = ["worktree", "remove", "--force"];
        if let Err(error) = process::run(git().args(remove).arg(&self.root)) {
            eprintln!("warning: {error:#}");
        }
    }
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.current_dir(datapath_build::workspace_root());
    git
}

/// Runs both builds in turns, and prints what became of each figure.
pub(super) fn run(
    bench: &Path,
    revision: &str,
    options: &Options,
    runtimes: Option<&Path>,
) -> Result<ExitCode> {
    let folder = datapath_build::workspace_root().join("target/compare");
    let tree = CheckedOut::new(revision)?;
    note(&format!("bench: building {revision}"));
    // A folder that stays: the next commit's dependencies are mostly this one's.
    let old = build(&tree.root, Some(&folder.join("build")));
    let old = old.with_context(|| format!("building {revision}"))?;
    let groups: &[Group] = if options.groups.is_empty() {
        &USUAL
    } else {
        &options.groups
    };
    let measured = |bench: &Path| measured(command(bench, runtimes), groups, &folder);
    let mut turns = Vec::new();
    for turn in 1..=options.turns {
        note(&format!("bench: turn {turn} of {}", options.turns));
        // The first run of a turn may find the machine warmer or colder, so the order alternates.
        let turn = if turn % 2 == 0 {
            let new = measured(bench)?;
            (measured(&old)?, new)
        } else {
            let old = measured(&old)?;
            (old, measured(bench)?)
        };
        turns.push(turn);
    }
    let compared = compare(&turns);
    let header = ["what", "old", "new", "unit", "new/old", "spread", ""];
    let rows: Vec<_> = compared
        .iter()
        .map(super::results::Compared::cells)
        .collect();
    let worse = compared.iter().filter(|one| one.is_worse()).count();
    console::result(&format!(
        "{}\n\n{worse} of {} figures are worse than in {revision}",
        console::table(&header, &rows),
        compared.len()
    ))?;
    Ok(if worse == 0 && !compared.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One run of a build.
fn measured(mut command: Command, groups: &[Group], folder: &Path) -> Result<Run> {
    let file = folder.join("results.json");
    command.args(groups.iter().map(|group| group.name()));
    process::run(command.arg("--quick").arg("--json").arg(&file))?;
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    Run::parse(&text)
}
