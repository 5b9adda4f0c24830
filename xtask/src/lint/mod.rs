//! `lint`: every check that needs no test to run.

mod deny;
mod edges;
mod folders;
mod layers;
mod markdown;
mod pins;
mod rfc;
mod text;

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::build::artifacts::{Metadata, SDK};
use crate::console::note;
use crate::setup::Need;
use crate::{ebpf, process, setup};

/// A check: its name and what runs it.
type Check = (&'static str, fn() -> Result<()>);

const CHECKS: [Check; 13] = [
    ("text rules", text::check),
    ("width of folders", folders::check),
    ("documentation pages", markdown::check),
    ("pinned versions", pins::check),
    ("the table of requirements", rfc::check),
    ("licences, sources and advisories", deny::check),
    ("dependency edges", || edges::check(&Metadata::read()?)),
    ("layers", layers::check),
    ("format", || {
        process::run(process::cargo("fmt").args(["--all", "--check"]))
    }),
    ("clippy", || process::run(&mut clippy())),
    ("clippy of the eBPF programs", clippy_ebpf),
    ("memory routines in the eBPF programs", || {
        ebpf::check(&ebpf::build(false)?)
    }),
    ("documentation", || process::run(&mut documentation())),
];

/// Runs `lint`: all checks, also after one has failed.
pub(crate) fn run() -> Result<ExitCode> {
    setup::ensure(&[Need::Build, Need::Lint])?;
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        note(&format!("lint: {name}"));
        if let Err(error) = check() {
            eprintln!("error: {name}: {error:#}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        println!("lint: {} checks passed", CHECKS.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("lint: failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Every target with every feature that the product is built with: one selection, so that cargo
/// checks each dependency once.
fn clippy() -> Command {
    let mut command = process::locked_cargo("clippy");
    command.args(["--quiet", "--workspace", "--all-targets"]);
    command.args(["--features", SDK, "--features", "towpath/debug-log"]);
    command.args(["--", "--deny", "warnings"]);
    command
}

fn clippy_ebpf() -> Result<()> {
    let endian = if cfg!(target_endian = "little") {
        "little"
    } else {
        "big"
    };
    datapath_build::clippy(std::env::consts::ARCH, endian)
}

fn documentation() -> Command {
    let mut command = process::locked_cargo("doc");
    command
        .args([
            "--quiet",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ])
        .env(
            "RUSTDOCFLAGS",
            "--deny warnings --allow rustdoc::private_intra_doc_links",
        );
    command
}
