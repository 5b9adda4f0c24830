//! Seeded faults: changes of the programs' sources that the tests of the programs must find.
//!
//! One object has all of them. Each waits for a global that is set when the object is loaded, so a
//! test loads the programs with one fault at a time.

mod nat;
mod packet;
mod path;
mod tree;

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};

pub use tree::build;

/// Name of the global that holds the number of the fault, 0 for none (`u32`).
pub const GLOBAL: &str = "FAULT";
/// Placeholder in [`Change::with`] for the condition that the programs have the fault.
const CONDITION: &str = "FAULT";

/// A fault.
#[derive(Debug)]
pub struct Fault {
    /// Its name.
    pub name: &'static str,
    /// The wrong behaviour of the programs.
    pub effect: &'static str,
    /// The changes that cause it.
    changes: &'static [Change],
}

/// A replacement in one file.
#[derive(Debug)]
struct Change {
    /// The file, below `datapath-ebpf/src`.
    file: &'static str,
    /// The correct code. The file has it once, however it is wrapped.
    code: &'static str,
    /// The code that replaces it.
    with: &'static str,
}

/// Every fault with its number, the value of the global [`GLOBAL`].
pub fn all() -> impl Iterator<Item = (u32, &'static Fault)> {
    let areas = [packet::FAULTS, nat::FAULTS, path::FAULTS];
    (1..).zip(areas.into_iter().flatten())
}

/// The text of a file below `datapath-ebpf/src` with all faults that it has.
///
/// # Errors
/// When the file does not have the code of a fault exactly once.
fn seed(file: &str, text: String) -> Result<String> {
    let mut seeded = text;
    for (number, fault) in all() {
        for change in fault.changes.iter().filter(|change| change.file == file) {
            seeded = change
                .apply(&seeded, number)
                .with_context(|| format!("seeded fault {}, file {file}", fault.name))?;
        }
    }
    Ok(seeded)
}

impl Change {
    /// Replaces the code by that of the fault with a number.
    fn apply(&self, text: &str, number: u32) -> Result<String> {
        let places = places(text, self.code);
        ensure!(
            places.len() == 1,
            "{:?} is there {} times, expected once: adapt the fault in datapath-build/src/faults",
            self.code,
            places.len()
        );
        let condition = format!("crate::fault::has({number})");
        let with = self.with.replace(CONDITION, &condition);
        let mut changed = text.to_owned();
        for place in places {
            changed.replace_range(place, &with);
        }
        Ok(changed)
    }
}

/// The places of a piece of code in a text, whose white space may differ.
fn places(text: &str, code: &str) -> Vec<Range<usize>> {
    let code = code.split_whitespace().collect::<String>();
    let mut dense = String::new();
    // For each byte of `dense`, the offset of its character in `text`.
    let mut offsets = Vec::new();
    for (offset, character) in text.char_indices().filter(|(_, it)| !it.is_whitespace()) {
        dense.push(character);
        offsets.resize(dense.len(), offset);
    }
    let place = |(at, found): (usize, &str)| {
        let last = at + found.len() - 1;
        Some(*offsets.get(at)?..offsets.get(last)? + 1)
    };
    dense.match_indices(&code).filter_map(place).collect()
}

#[cfg(test)]
mod tests;
