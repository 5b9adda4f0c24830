//! Paths of pinned maps and links: `<pin_root>/v<ABI version>/{maps,links,qdiscs}`.
//!
//! The pins are the only record of attachments that survives the agent. A running agent holds maps
//! and links open. So they stay if a pin is removed, and the next observation pins them again.

pub(in crate::bpf) mod bpffs;
pub(in crate::bpf) mod cleanup;
pub(in crate::bpf) mod upkeep;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use datapath_common::abi;
use datapath_common::counter::Program;

use crate::kernel::Hook;
use crate::stamp::Stamp;

/// The folders of our pins.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    root: PathBuf,
}

/// A pinned link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkPin {
    /// The hook in its name.
    pub(super) hook: Hook,
    /// The ABI version of its folder.
    pub(super) version: u32,
    /// Where it is.
    pub(super) path: PathBuf,
}

impl Pins {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Makes the folders of the current version.
    pub(super) fn create(&self) -> Result<()> {
        for name in ["maps", "links", "qdiscs"] {
            let folder = self.folder(name);
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make the pin folder {}", folder.display()))?;
        }
        Ok(())
    }

    fn version_folder(&self, version: u32) -> PathBuf {
        self.root.join(format!("v{version}"))
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.version_folder(abi::VERSION).join(name)
    }

    /// The pin of a map.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.folder("maps").join(name)
    }

    /// The pin of a hook's link.
    pub(super) fn link(&self, hook: Hook) -> PathBuf {
        self.link_of(abi::VERSION, hook)
    }

    /// The pin that a version has, or would have, of a hook's link.
    pub(super) fn link_of(&self, version: u32, hook: Hook) -> PathBuf {
        let name = format!("{}-{}", hook.program.name(), hook.ifindex);
        self.version_folder(version).join("links").join(name)
    }

    /// The folder of links.
    pub(super) fn links_folder(&self) -> PathBuf {
        self.folder("links")
    }

    /// The stamps of the folders, which change with every pin that comes or goes.
    pub(super) fn stamps(&self) -> Vec<Stamp> {
        let folders = ["maps", "links", "qdiscs"].map(|name| self.folder(name));
        let folders = folders.iter().map(PathBuf::as_path);
        folders
            .chain([self.root.as_path()])
            .map(Stamp::of)
            .collect()
    }

    /// Marks a device's clsact qdisc as made by us.
    pub(super) fn mark(&self, ifindex: u32) -> Result<()> {
        let mark = self.qdisc(ifindex);
        fs::create_dir_all(&mark)
            .with_context(|| format!("cannot make the mark {}", mark.display()))
    }

    /// The mark, an empty folder, that a device's clsact qdisc was made by us.
    pub(super) fn qdisc(&self, ifindex: u32) -> PathBuf {
        self.folder("qdiscs").join(ifindex.to_string())
    }

    /// The devices whose clsact qdisc was made by us.
    pub(super) fn qdiscs(&self) -> Result<Vec<u32>> {
        let marks = names(&self.folder("qdiscs"))?;
        Ok(marks.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// The versions that have a folder.
    pub(super) fn versions(&self) -> Result<Vec<u32>> {
        Ok(names(&self.root)?
            .iter()
            .filter_map(|name| name.strip_prefix('v')?.parse().ok())
            .collect())
    }

    /// Every pinned link of every version.
    pub(super) fn links(&self) -> Result<Vec<LinkPin>> {
        let mut pins = Vec::new();
        for version in self.versions()? {
            let folder = self.version_folder(version).join("links");
            pins.extend(names(&folder)?.iter().filter_map(|name| {
                Some(LinkPin {
                    hook: parse(name)?,
                    version,
                    path: folder.join(name),
                })
            }));
        }
        Ok(pins)
    }

    /// The pinned links of some hooks, of every version.
    pub(super) fn links_of(&self, hooks: &[Hook]) -> Result<Vec<LinkPin>> {
        let mut pins = Vec::new();
        for version in self.versions()? {
            pins.extend(hooks.iter().filter_map(|hook| {
                let path = self.link_of(version, *hook);
                path.exists().then_some(LinkPin {
                    hook: *hook,
                    version,
                    path,
                })
            }));
        }
        Ok(pins)
    }

    /// Removes the folders of other versions that have no link any more: no program that an agent
    /// of theirs attached is left. Their marks of qdiscs are taken over: filters of theirs, which
    /// have no pin, may be on them still, or filters of ours by now.
    pub(super) fn remove_unused_versions(&self) -> Result<()> {
        for version in self.versions()? {
            let folder = self.version_folder(version);
            if version != abi::VERSION && names(&folder.join("links"))?.is_empty() {
                for mark in names(&folder.join("qdiscs"))? {
                    let mark = self.folder("qdiscs").join(mark);
                    fs::create_dir_all(&mark)
                        .with_context(|| format!("cannot make the mark {}", mark.display()))?;
                }
                remove_folder(&folder)?;
            }
        }
        Ok(())
    }

    /// Removes every version's folder; returns what was in them, relative to the root.
    pub(super) fn remove_all(&self) -> Result<Vec<String>> {
        let mut removed = Vec::new();
        for version in self.versions()? {
            let folder = self.version_folder(version);
            for kind in names(&folder)? {
                for name in names(&folder.join(&kind))? {
                    removed.push(format!("v{version}/{kind}/{name}"));
                }
            }
            remove_folder(&folder)?;
        }
        Ok(removed)
    }
}

fn parse(name: &str) -> Option<Hook> {
    let (program, ifindex) = name.rsplit_once('-')?;
    Some(Hook {
        ifindex: ifindex.parse().ok()?,
        program: Program::ALL.into_iter().find(|p| p.name() == program)?,
    })
}

/// The names in a folder; none when there is no such folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let read = || -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(folder) {
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            other => other?,
        };
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    read().with_context(|| format!("cannot read the pin folder {}", folder.display()))
}

/// True if the error says that there is no such file or folder.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Removes a pin; one that is not there is success.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if is_missing(&error) => Ok(()),
        other => other.with_context(|| format!("cannot remove the pin {}", path.display())),
    }
}

/// Removes a folder of pins with all that is in it.
fn remove_folder(path: &Path) -> Result<()> {
    fs::remove_dir_all(path)
        .with_context(|| format!("cannot remove the pin folder {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_come_back_and_strange_ones_do_not() {
        let pins = Pins::new(Path::new("/pins"));
        for program in Program::ALL {
            let hook = Hook {
                ifindex: 17,
                program,
            };
            let path = pins.link(hook);
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert_eq!(parse(&name), Some(hook));
        }
        for name in ["from_network", "from_network-", "other-3", "from_network-x"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn only_version_folders_are_removed() {
        let root = tempfile::tempdir().unwrap();
        for path in ["v1/maps", "v1/links", "v12/links", "vx", "other"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        fs::write(root.path().join("v1/links/from_network-3"), "").unwrap();
        let pins = Pins::new(root.path());
        assert_eq!(pins.links().unwrap().len(), 1);
        pins.remove_unused_versions().unwrap();
        assert!(root.path().join("v1").exists());
        assert!(!root.path().join("v12").exists());
        assert_eq!(pins.remove_all().unwrap(), ["v1/links/from_network-3"]);
        let mut left = names(root.path()).unwrap();
        left.sort();
        assert_eq!(left, ["other", "vx"]);
    }

    #[test]
    fn a_missing_root_has_no_pins() {
        let pins = Pins::new(Path::new("/nonexistent/pins"));
        assert!(pins.links().unwrap().is_empty());
        assert!(pins.remove_all().unwrap().is_empty());
    }
}
