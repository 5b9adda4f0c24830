//! The number of siblings in a folder of sources: a reader has to find a module by its name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::text::{files, is_test};
use crate::console::note;

/// Modules that a folder may have.
const MOST: usize = 12;

/// Folders, and the modules in each.
type Folders = BTreeMap<PathBuf, BTreeSet<String>>;

/// Fails on a folder of sources with too many siblings.
pub(super) fn check() -> Result<()> {
    let root = datapath_build::workspace_root();
    let all = files(root, "rs")?;
    let folders = folders(all.iter().filter_map(|file| file.strip_prefix(root).ok()));
    let faults = faults(&folders);
    if faults.is_empty() {
        note(&format!("folders: {}, none too wide", folders.len()));
        return Ok(());
    }
    bail!("{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The modules of every folder of sources. A file and the folder of its name are one module. Tests
/// do not count, and neither does the file that declares the modules.
fn folders<'a>(files: impl Iterator<Item = &'a Path>) -> Folders {
    let mut folders = Folders::new();
    for file in files.filter(|file| !is_test(file)) {
        let module = file.with_extension("");
        for path in module.ancestors() {
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                continue;
            };
            let is_source = folder.iter().any(|part| part == "src");
            if is_source && !["lib", "main", "mod"].iter().any(|root| name == *root) {
                let modules = folders.entry(folder.to_owned()).or_default();
                modules.insert(name.to_string_lossy().into_owned());
            }
        }
    }
    folders
}

/// The folders that have too many.
fn faults(folders: &Folders) -> Vec<String> {
    let wide = folders.iter().filter(|(_, modules)| modules.len() > MOST);
    wide.map(|(folder, modules)| {
        format!(
            "{} has {} modules, at most {MOST} are allowed: group them by concern",
            folder.display(),
            modules.len()
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(names: &[String]) -> Vec<String> {
        faults(&folders(names.iter().map(Path::new)))
    }

    /// A folder of so many modules.
    fn wide(folder: &str, modules: usize) -> Vec<String> {
        (0..modules)
            .map(|number| format!("{folder}/m{number}.rs"))
            .collect()
    }

    #[test]
    fn a_folder_with_too_many_modules_is_named_with_their_number() {
        let mut names = wide("a/src/b", MOST);
        assert_eq!(faults_of(&names), Vec::<String>::new());
        names.push("a/src/b/other/mod.rs".to_owned());
        let expected = "a/src/b has 13 modules, at most 12 are allowed: group them by concern";
        assert_eq!(faults_of(&names), [expected]);
    }

    #[test]
    fn what_is_no_module_of_its_own_does_not_count() {
        let mut names = wide("a/src", MOST);
        for other in [
            "a/src/lib.rs",
            "a/src/main.rs",
            "a/src/tests.rs",
            "a/src/tests/c.rs",
            "a/src/m0/tests.rs",
            "a/src/m1/inner.rs",
        ] {
            names.push(other.to_owned());
        }
        names.extend(wide("a/tests/src", MOST + 1));
        assert_eq!(faults_of(&names), Vec::<String>::new());
    }
}
