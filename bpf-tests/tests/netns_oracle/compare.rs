//! A sequence through both translations, and what may differ.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::sequence::{Outcome, Step, parse};
use crate::stage::NETS;
use crate::worlds::{Who, record};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sequences")
}

/// The names of the files with sequences.
pub(crate) fn files() -> BTreeSet<String> {
    fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect()
}

/// The steps of a file.
pub(crate) fn steps(name: &str) -> Vec<Step> {
    let path = folder().join(format!("{name}.txt"));
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    parse(&text).unwrap_or_else(|error| panic!("{name}: {error:#}"))
}

/// Plays a file through both, and compares.
#[track_caller]
pub(crate) fn agree(name: &str) {
    let steps = steps(name);
    let play = |who| record(who, &steps).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let (kernel, ours) = (play(Who::Kernel), play(Who::Ours));
    let mut differing = Vec::new();
    for (net, (kernel, ours)) in NETS.iter().zip(kernel.iter().zip(&ours)) {
        for (step, (kernel, ours)) in steps.iter().zip(kernel.iter().zip(ours)) {
            let (Some(kernel), Some(ours)) = (kernel, ours) else {
                assert_eq!(kernel, ours, "{name}: a step only one of them has");
                continue;
            };
            let expected = &step.expected;
            if (kernel.outcome, ours.outcome) != (expected.kernel, expected.ours) {
                differing.push(format!(
                    "{}: line {}: {}: kernel {}, ours {}",
                    net.name, step.line, step.text, kernel.outcome, ours.outcome
                ));
            } else if expected.difference.is_none() && kernel.frames != ours.frames {
                differing.push(format!(
                    "{}: line {}: {}: {}",
                    net.name,
                    step.line,
                    step.text,
                    first_difference(&kernel.frames, &ours.frames)
                ));
            }
        }
    }
    assert!(differing.is_empty(), "{name}:\n{}", differing.join("\n"));
}

/// Names of the differences that sequences use.
pub(crate) fn differences_used() -> BTreeSet<String> {
    files()
        .iter()
        .flat_map(|name| steps(name))
        .filter_map(|step| step.expected.difference)
        .collect()
}

/// Names of the differences that the documentation allows: the first column of its table.
pub(crate) fn differences_allowed() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/nat.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once("## Differences from conntrack").unwrap();
    let section = section.split("\n## ").next().unwrap();
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// True if a step says that something is delivered at all.
pub(crate) fn delivers(step: &Step) -> bool {
    step.expected.ours == Outcome::Delivered
}

/// Where two lots of frames begin to differ.
fn first_difference(kernel: &[Vec<u8>], ours: &[Vec<u8>]) -> String {
    let mut pairs = kernel.iter().zip(ours).enumerate();
    let Some((number, (kernel, ours))) = pairs.find(|(_, (kernel, ours))| kernel != ours) else {
        return format!("kernel {} packets, ours {}", kernel.len(), ours.len());
    };
    let equal = kernel
        .iter()
        .zip(ours)
        .take_while(|(one, other)| one == other);
    let at = equal.count();
    let part = |frame: &[u8]| frame.iter().skip(at).take(16).copied().collect::<Vec<_>>();
    format!(
        "packet {number} differs from byte {at}: kernel {:02x?} of {}, ours {:02x?} of {}",
        part(kernel),
        kernel.len(),
        part(ours),
        ours.len()
    )
}
