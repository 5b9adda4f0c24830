//! Prints what each path of a packet costs as one JSON array in one line; with the beginning of a path's
//! name as argument, where such paths spend their instructions. `cargo xtask path-cost` calls it. Needs
//! root.

use std::collections::BTreeMap;
use std::env;

use anyhow::Result;
use bpf_tests::path_cost::{self, Row};

fn main() -> Result<()> {
    let rows = path_cost::measure()?;
    match env::args().nth(1) {
        None => println!("{}", serde_json::to_string(&rows)?),
        Some(name) => {
            for row in rows.iter().filter(|row| row.path.starts_with(&name)) {
                print(row);
            }
        }
    }
    Ok(())
}

/// Prints a path's cost and profile.
fn print(row: &Row) {
    let service_nat = if row.service_nat { "on" } else { "off" };
    println!(
        "{}: {}, service NAT {service_nat}: {} instructions, {} jumps taken, {} calls of helpers",
        row.program, row.path, row.instructions, row.cost.jumps, row.helpers
    );
    for (name, count) in &row.cost.helpers {
        println!("{count:6} {name}");
    }
    for (name, count) in &row.cost.lookups {
        println!("{count:6} look-ups in {name}");
    }
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    let mut files: BTreeMap<&str, u64> = BTreeMap::new();
    for (origin, count) in &row.cost.profile {
        *functions.entry(&origin.function).or_default() += count;
        *files.entry(&origin.file).or_default() += count;
    }
    println!("by function of the object");
    print_sorted(functions);
    println!("by source file");
    print_sorted(files);
    println!("by source line");
    print_sorted(
        row.cost
            .profile
            .iter()
            .map(|(origin, count)| (format!("{}:{}", origin.file, origin.line), *count)),
    );
    println!();
}

/// Prints counts, the largest first.
fn print_sorted(counts: impl IntoIterator<Item = (impl AsRef<str>, u64)>) {
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (name, count) in sorted {
        println!("{count:6} {}", name.as_ref());
    }
}
