//! The texts of a file, or of the files in a folder.

use std::fs;
use std::path::{Path, PathBuf};

use document::{FileError, read_file};

/// One text and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// The file.
    pub(crate) path: PathBuf,
    /// Content of the file, or the reason why it cannot be read.
    pub(crate) text: Result<String, String>,
}

/// Files at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fragments {
    /// Nothing is there.
    Missing,
    /// The files, in the order of their names; of a folder, the selected ones.
    Found(Vec<Fragment>),
    /// The folder cannot be read.
    Unreadable(String),
}

impl Fragments {
    /// Reads a file, or those files of a folder whose names `wanted` takes. Names that begin with
    /// a dot are never taken: a `ConfigMap` mount and editors keep their own files under such.
    pub(crate) fn read(path: &Path, wanted: impl Fn(&Path) -> bool) -> Self {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                return Self::collect([path.to_owned()]);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Self::Missing,
            Err(error) => return Self::Unreadable(format!("{}: {error}", path.display())),
        };
        let mut paths = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => paths.push(entry.path()),
                Err(error) => return Self::Unreadable(format!("{}: {error}", path.display())),
            }
        }
        let hidden = |path: &Path| {
            path.file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
        };
        paths.retain(|path| !hidden(path) && !path.is_dir() && wanted(path));
        paths.sort();
        Self::collect(paths)
    }

    fn collect(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut found = Vec::new();
        for path in paths {
            match read_file(&path) {
                // The file was removed after the folder was listed.
                Err(FileError::Open(error)) if error.kind() == std::io::ErrorKind::NotFound => {}
                read => found.push(Fragment {
                    text: read.map_err(|error| error.to_string()),
                    path,
                }),
            }
        }
        Self::Found(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gives_the_files_that_are_wanted() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path();
        let write = |name: &str| fs::write(top.join(name), name).unwrap();
        let yaml = |path: &Path| path.extension().is_some_and(|e| e == "yaml");
        let names = || match Fragments::read(top, yaml) {
            Fragments::Found(all) => all.into_iter().map(|f| f.text.unwrap()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert!(names().is_empty());
        for name in ["b.yaml", "a.yaml", ".c.yaml", "d.txt"] {
            write(name);
        }
        fs::create_dir(top.join("e.yaml")).unwrap();
        assert_eq!(names(), ["a.yaml", "b.yaml"]);
        fs::write(top.join("f.yaml"), [0xff]).unwrap();
        match Fragments::read(top, yaml) {
            Fragments::Found(all) => {
                let are_read: Vec<_> = all.iter().map(|one| one.text.is_ok()).collect();
                assert_eq!(are_read, [true, true, false]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_is_read_whatever_its_name_and_a_missing_one_is_told() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("ip-masq-agent");
        assert_eq!(Fragments::read(&path, |_| false), Fragments::Missing);
        fs::write(&path, "x").unwrap();
        let text = Ok("x".to_owned());
        assert_eq!(
            Fragments::read(&path, |_| false),
            Fragments::Found(vec![Fragment { path, text }])
        );
    }
}
