//! Loads every program of the eBPF object given as argument and prints what the kernel says about
//! it, as one JSON object by program name. `cargo xtask build-ebpf` calls it. Needs root.

use std::collections::BTreeMap;
use std::env;

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya::programs::SchedClassifier;
use serde::Serialize;

/// What the kernel says about a loaded program.
#[derive(Serialize)]
struct Loaded {
    /// Instructions that the verifier walked; kernels before 5.16 do not tell.
    verified_instructions: Option<u32>,
}

fn main() -> Result<()> {
    let path = env::args_os().nth(1).context("usage: ebpf-report OBJECT")?;
    let mut object =
        Ebpf::load_file(&path).with_context(|| format!("cannot load {}", path.display()))?;
    let mut report = BTreeMap::new();
    for (name, program) in object.programs_mut() {
        let program: &mut SchedClassifier = program
            .try_into()
            .with_context(|| format!("program {name} is no classifier"))?;
        program
            .load()
            .with_context(|| format!("the kernel refuses program {name}"))?;
        let loaded = Loaded {
            verified_instructions: program.info()?.verified_instruction_count(),
        };
        report.insert(name.to_owned(), loaded);
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
