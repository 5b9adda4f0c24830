//! The report of `build-ebpf`.

use std::path::Path;

use serde::Serialize;

use super::measured::{Figures, Measured};
use super::object::Object;
use crate::console;

/// Cost of an object's programs.
#[derive(Serialize)]
pub(crate) struct Report {
    /// Path of the object.
    object: String,
    /// Its programs, by name.
    programs: Vec<Row>,
}

/// Cost of one program.
#[derive(Serialize)]
struct Row {
    program: String,
    /// Instruction slots, with called functions.
    instructions: u64,
    /// Instruction slots in bytes, with called functions.
    bytes: u64,
    /// Bytes of stack, of 512.
    stack_bytes: u64,
    /// Instructions that the verifier walked; absent without root, like the fields below.
    verified_instructions: Option<u64>,
    /// States that it kept, in total.
    total_states: Option<u64>,
    /// The most states that it kept at one time.
    peak_states: Option<u64>,
    /// The time that it took, in microseconds.
    verification_microseconds: Option<u64>,
}

impl Report {
    /// Joins the figures of the code with those of the verifier.
    pub(super) fn new(path: &Path, object: &Object, measured: Option<&Measured>) -> Self {
        let programs = object
            .costs()
            .into_iter()
            .map(|cost| {
                let verified = measured.and_then(|measured| measured.programs.get(&cost.name));
                let figure = |of: fn(&Figures) -> u64| verified.map(of);
                Row {
                    program: cost.name.clone(),
                    instructions: cost.instructions,
                    bytes: cost.instructions * 8,
                    stack_bytes: cost.stack,
                    verified_instructions: figure(|verified| verified.verified_instructions),
                    total_states: figure(|verified| verified.total_states),
                    peak_states: figure(|verified| verified.peak_states),
                    verification_microseconds: figure(|verified| verified.microseconds),
                }
            })
            .collect();
        Self {
            object: path.display().to_string(),
            programs,
        }
    }

    /// The report for people.
    pub(super) fn table(&self) -> String {
        let cell = |figure: Option<u64>| {
            figure.map_or_else(|| "-".to_owned(), |figure| figure.to_string())
        };
        let rows = self.programs.iter().map(|row| {
            vec![
                row.program.clone(),
                row.instructions.to_string(),
                row.bytes.to_string(),
                row.stack_bytes.to_string(),
                cell(row.verified_instructions),
                cell(row.total_states),
                cell(row.peak_states),
                cell(row.verification_microseconds.map(|time| time / 1000)),
            ]
        });
        let rows: Vec<_> = rows.collect();
        let header = [
            "program",
            "instructions",
            "bytes",
            "stack",
            "verified",
            "states",
            "peak states",
            "milliseconds",
        ];
        format!("{}\n{}", self.object, console::table(&header, &rows))
    }
}
