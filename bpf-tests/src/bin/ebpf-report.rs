//! Loads every program of the eBPF object given as argument, as it is and as a release has it, and
//! prints what the kernel says about it, and what the agent finds the kernel to lack, as one JSON object in one line. `cargo xtask`
//! calls it, here and in the guests of the kernel matrix. Needs root.

use std::collections::BTreeMap;
use std::env;
use std::fs;

use anyhow::{Context as _, Result};
use datapath_build::{Lines, strip};
use loader::bpf::{AttachMode, Features};
use serde::Serialize;
use testkit::verifier::{self, Cost};

/// The printed text.
#[derive(Serialize)]
struct Report {
    /// The kernel's release, as `uname -r`.
    kernel: String,
    /// Names of what the agent uses where it is and the kernel lacks.
    missing_features: Vec<String>,
    /// The programs by name.
    programs: BTreeMap<String, Cost>,
}

fn main() -> Result<()> {
    let path = env::args_os().nth(1).context("usage: ebpf-report OBJECT")?;
    let object = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let features = Features::probe(AttachMode::Auto)?;
    let missing = features.missing().into_iter();
    // The verifier's log of a program that is refused names lines, of which a release has none.
    verifier::verify(&object)?;
    let shipped = strip(&object, Lines::Forgotten)?;
    let report = Report {
        missing_features: missing.map(|feature| feature.name).collect(),
        programs: verifier::verify(&shipped)?,
        kernel: features.kernel,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
