//! `build-ebpf`: the object, and the cost of its programs.

mod costs;
mod figures;
mod measured;
mod object;
mod paths;
mod report;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::build::artifacts::{self, Executable, Metadata};
use crate::console::{self, note};
use crate::test::Results;
use crate::{process, setup};
pub(crate) use costs::Costs;
pub(crate) use measured::Measured;
pub(crate) use object::Object;
pub(crate) use paths::{Options as PathOptions, check as check_paths, run as paths};
use report::Report;

/// Options of `build-ebpf`.
#[derive(Args)]
pub(crate) struct Options {
    /// Compile aya-log into the programs: a line per packet, for debugging only.
    #[arg(long)]
    debug_log: bool,
    /// Format of the report.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// Format of a report.
#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// A table for people.
    Table,
    /// JSON for programs.
    Json,
}

/// Runs `build-ebpf`.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::ensure(&[setup::Need::Build])?;
    let path = build(options.debug_log)?;
    let object = Object::read(&path)?;
    let calls = object.memory_routine_calls();
    let measured = if process::is_root() {
        let executables = artifacts::build_binaries(&Metadata::read()?)?;
        Some(Measured::here(&executables, &path)?)
    } else {
        note("build-ebpf: verified instructions need root (the kernel's verifier counts them)");
        None
    };
    let report = Report::new(&path, &object, measured.as_ref());
    match options.output {
        Output::Table => console::result(&report.table())?,
        Output::Json => console::result(&serde_json::to_string_pretty(&report)?)?,
    }
    let deep = object.too_deep();
    if !deep.is_empty() {
        bail!("{}", deep.join(", "));
    }
    if !calls.is_empty() {
        bail!(
            "byte-wise memory routines cost hundreds of instructions a call; found: {}",
            calls.join(", ")
        );
    }
    Ok(())
}

/// Builds the object for this machine.
pub(crate) fn build(debug_log: bool) -> Result<PathBuf> {
    let endian = if cfg!(target_endian = "little") {
        "little"
    } else {
        "big"
    };
    datapath_build::build(std::env::consts::ARCH, endian, debug_log)
}

/// Fails when a program of the object at `path` calls a byte-wise memory routine.
pub(crate) fn check(path: &Path) -> Result<()> {
    let object = Object::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let calls = object.memory_routine_calls();
    if !calls.is_empty() {
        bail!("calls of byte-wise memory routines: {}", calls.join(", "));
    }
    let deep = object.too_deep();
    if !deep.is_empty() {
        bail!("{}", deep.join(", "));
    }
    Ok(())
}

/// Builds the object for this machine, and reads its code.
pub(crate) fn object() -> Result<(PathBuf, Object)> {
    let path = build(false)?;
    let object = Object::read(&path)?;
    Ok((path, object))
}

/// Compares the running kernel's figures for the programs with the checked-in ones: one test.
pub(crate) fn check_costs(executables: &[Executable]) -> Results {
    note("test: the verifier's figures");
    let check = || {
        let (path, object) = object()?;
        let measured = Measured::here(executables, &path)?;
        Costs::checked_in()?.check_elsewhere(&object, &measured)
    };
    Results::of("the verifier's figures", check())
}
