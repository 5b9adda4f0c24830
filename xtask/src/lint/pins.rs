//! Every dependency is pinned, so that the tested versions are built.

use std::fs;

use anyhow::{Context as _, Result, bail};

/// The section of the workspace's `Cargo.toml` that names all dependencies.
const SECTION: &str = "[workspace.dependencies]";

/// Fails on a dependency whose version is not exact.
pub(super) fn check() -> Result<()> {
    let file = datapath_build::workspace_root().join("Cargo.toml");
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let loose = loose(&text);
    if loose.is_empty() {
        return Ok(());
    }
    bail!(
        "Cargo.toml: versions must be exact (\"=1.2.3\"): {}",
        loose.join("; ")
    );
}

/// The entries of the section that have no exact version; our own crates have only a path.
fn loose(manifest: &str) -> Vec<&str> {
    let section = manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != SECTION)
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    section
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter(|line| !is_exact(line))
        .collect()
}

/// True if an entry is pinned: `name = "=1.2.3"`, `name = { version = "=1.2.3", ... }`, or one of
/// ours.
fn is_exact(entry: &str) -> bool {
    let Some((_, value)) = entry.split_once('=') else {
        return false;
    };
    let value = value.trim_start();
    if !value.starts_with('{') {
        return value.starts_with("\"=");
    }
    match value.split_once("version = ") {
        Some((_, version)) => version.starts_with("\"="),
        None => value.contains("path = "),
    }
}

#[cfg(test)]
mod tests {
    use super::{check, loose};

    #[test]
    fn our_own_are_pinned() {
        check().unwrap();
    }

    #[test]
    fn names_the_entries_that_are_not_exact() {
        let manifest = "[package]\nversion = \"1\"\n\n[workspace.dependencies]\n# ours\n\
                        a = { path = \"a\" }\n\
                        b = \"=1.0.1\"\n\
                        c = { version = \"=1.0\", features = [\"x\"] }\n\
                        d = \"0.2\"\n\
                        e = { features = [\"=x\"], version = \"1.0\" }\n\
                        f = { git = \"x\" }\n\n[profile.dev]\nopt-level = \"s\"\n";
        assert_eq!(
            loose(manifest),
            [
                "d = \"0.2\"",
                "e = { features = [\"=x\"], version = \"1.0\" }",
                "f = { git = \"x\" }"
            ]
        );
    }
}
