//! The report of `build-ebpf`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::object::Object;
use crate::artifacts::{self, Metadata};
use crate::{console, process};

/// What an object's programs cost.
#[derive(Serialize)]
pub(crate) struct Report {
    /// Where the object is.
    object: String,
    /// Its programs, by name.
    programs: Vec<Row>,
}

/// What one program costs.
#[derive(Serialize)]
struct Row {
    program: String,
    /// Instruction slots, with called functions.
    instructions: u64,
    /// The same in bytes.
    bytes: u64,
    /// Bytes of stack, of 512.
    stack_bytes: u64,
    /// Instructions that the verifier walked; absent without root, or where the kernel does not
    /// tell (before 5.16).
    verified_instructions: Option<u32>,
}

/// A program as the running kernel loaded it; printed by `ebpf-report`.
#[derive(Deserialize)]
pub(super) struct Loaded {
    verified_instructions: Option<u32>,
}

impl Report {
    /// Joins what the code says with what the verifier says.
    pub(super) fn new(
        path: &Path,
        object: &Object,
        loaded: Option<&BTreeMap<String, Loaded>>,
    ) -> Self {
        let programs = object
            .costs()
            .into_iter()
            .map(|cost| Row {
                verified_instructions: loaded
                    .and_then(|loaded| loaded.get(&cost.name))
                    .and_then(|program| program.verified_instructions),
                program: cost.name,
                instructions: cost.instructions,
                bytes: cost.instructions * 8,
                stack_bytes: cost.stack,
            })
            .collect();
        Self {
            object: path.display().to_string(),
            programs,
        }
    }

    /// The report for people.
    pub(super) fn table(&self) -> String {
        let rows: Vec<_> = self
            .programs
            .iter()
            .map(|row| {
                vec![
                    row.program.clone(),
                    row.instructions.to_string(),
                    row.bytes.to_string(),
                    row.stack_bytes.to_string(),
                    row.verified_instructions
                        .map_or_else(|| "-".to_owned(), |count| count.to_string()),
                ]
            })
            .collect();
        let header = ["program", "instructions", "bytes", "stack", "verified"];
        format!("{}\n{}", self.object, console::table(&header, &rows))
    }
}

/// Has the running kernel verify every program of the object.
pub(super) fn verify(object: &Path) -> Result<BTreeMap<String, Loaded>> {
    let executables = artifacts::build_binaries(&Metadata::read()?)?;
    let reporter = artifacts::binary(&executables, "ebpf-report")?;
    let text = process::output(Command::new(reporter).arg(object))?;
    serde_json::from_str(&text).context("ebpf-report printed no report")
}
