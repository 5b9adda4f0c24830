//! Rules on the text of our sources that the compiler does not check.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Texts that no source may contain, and the reasons. They are split, so that this file passes.
const FORBIDDEN: &[(&str, &str)] = &[
    (
        concat!("TO", "DO"),
        "unfinished work belongs in the tracker",
    ),
    (
        concat!("FIX", "ME"),
        "unfinished work belongs in the tracker",
    ),
    (concat!("todo", "!("), "unfinished work is not handed over"),
    (
        concat!("unimple", "mented!("),
        "unfinished work is not handed over",
    ),
    (concat!("#[ig", "nore"), "nothing is skipped silently"),
    (concat!("allow(dead", "_code"), "what nobody calls goes"),
];

/// Lines that a source file may have; test files may be longer.
const LONGEST_FILE: usize = 450;

/// First words of a documentation comment that hide its subject.
const OPENINGS: &[&str] = &["What", "Whether", "Whose", "Who", "How", "Has", "The same"];

/// Fails on a source that breaks a rule.
pub(super) fn check() -> Result<()> {
    let root = datapath_build::workspace_root();
    let mut faults = Vec::new();
    for file in files(root, "rs")? {
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file);
        faults.extend(faults_in(name, &text));
    }
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The faults of one file.
fn faults_in(name: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for (word, reason) in FORBIDDEN {
            if line.contains(word) {
                faults.push(format!("{}:{number}: {word}: {reason}", name.display()));
            }
        }
        if let Some(word) = opening(line) {
            faults.push(format!(
                "{}:{number}: a documentation comment begins with {word:?}: begin with the subject",
                name.display()
            ));
        }
    }
    let lines = text.lines().count();
    if lines > LONGEST_FILE && !is_test(name) {
        faults.push(format!(
            "{}: {lines} lines, at most {LONGEST_FILE} are allowed: split it by concern",
            name.display()
        ));
    }
    faults
}

/// The one of [`OPENINGS`] with which a line begins a documentation comment, or a sentence in one.
fn opening(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let text = line
        .strip_prefix("/// ")
        .or_else(|| line.strip_prefix("//! "))?;
    OPENINGS.iter().copied().find(|word| {
        let rest = text.strip_prefix(word);
        rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    })
}

pub(super) fn is_test(name: &Path) -> bool {
    name.file_name().is_some_and(|file| file == "tests.rs")
        || name.components().any(|part| part.as_os_str() == "tests")
}

/// Every file below `root` with this extension, except build results.
pub(super) fn files(root: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.to_string_lossy().starts_with('.') {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{FORBIDDEN, LONGEST_FILE, faults_in, files};

    #[test]
    fn every_forbidden_word_is_found_with_its_line() {
        for (word, _) in FORBIDDEN {
            let faults = faults_in(Path::new("a.rs"), &format!("fn a() {{}}\n// {word}\n"));
            assert_eq!(faults.len(), 1, "{word}");
            assert!(faults[0].starts_with("a.rs:2: "), "{faults:?}");
        }
    }

    #[test]
    fn long_files_are_faults_unless_they_are_tests() {
        let text = "\n".repeat(LONGEST_FILE + 1);
        assert_eq!(faults_in(Path::new("src/a.rs"), &text).len(), 1);
        assert!(faults_in(Path::new("src/a/tests.rs"), &text).is_empty());
        assert!(faults_in(Path::new("tests/a.rs"), &text).is_empty());
    }

    #[test]
    fn comments_that_hide_their_subject_are_found_with_their_lines() {
        for line in ["/// What it is.", "    //! The same.", "/// Whose"] {
            let faults = faults_in(Path::new("a.rs"), &format!("fn a() {{}}\n{line}\n"));
            assert_eq!(faults.len(), 1, "{line}");
            assert!(faults[0].starts_with("a.rs:2: "), "{faults:?}");
        }
        for line in ["/// Whatever.", "/// The sameness.", "// What", "What"] {
            let faults = faults_in(Path::new("a.rs"), line);
            assert!(faults.is_empty(), "{faults:?}");
        }
    }

    #[test]
    fn finds_this_file_and_no_build_results() {
        let files = files(datapath_build::workspace_root(), "rs").unwrap();
        assert!(
            files
                .iter()
                .any(|file| file.ends_with("xtask/src/lint/text.rs"))
        );
        assert!(
            !files
                .iter()
                .any(|file| file.iter().any(|part| part == "target"))
        );
    }
}
