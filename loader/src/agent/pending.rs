//! Deletes that the CNI plugin left on disk while no agent answered.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::actor::Actor;
use super::kernel::Host;
use crate::document::read_file;
use crate::faults::{self, Point};
use crate::types::Owner;

/// Version of the files.
const VERSION: u32 = 1;

/// One delete.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Delete {
    version: u32,
    container_id: String,
    interface: String,
}

/// The folder of deletes, and which of its files are no deletes.
#[derive(Debug, Default)]
pub(super) struct Pending {
    folder: PathBuf,
    bad: Vec<PathBuf>,
}

impl Pending {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            bad: Vec::new(),
        }
    }

    /// The files that are no deletes. They stay where they are.
    pub(super) fn bad(&self) -> &[PathBuf] {
        &self.bad
    }

    /// What there is to do: files and owners. A folder that is not there has nothing.
    fn read(&mut self) -> Result<Vec<(PathBuf, Owner)>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.bad.clear();
                return Ok(Vec::new());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("read {}", self.folder.display()));
            }
        };
        let mut deletes = Vec::new();
        let mut bad = Vec::new();
        for entry in entries {
            let path = entry
                .with_context(|| format!("read {}", self.folder.display()))?
                .path();
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            // What begins with a dot is still being written.
            if name.starts_with('.') || path.extension() != Some(OsStr::new("json")) {
                continue;
            }
            match parse(&path) {
                Ok(owner) => deletes.push((path, owner)),
                Err(error) => {
                    if !self.bad.contains(&path) {
                        let file = path.display();
                        tracing::error!(%file, "a delete that was left cannot be read: {error:#}");
                    }
                    bad.push(path);
                }
            }
        }
        self.bad = bad;
        Ok(deletes)
    }
}

fn parse(path: &Path) -> Result<Owner> {
    let delete: Delete = serde_json::from_str(&read_file(path)?)?;
    let version = delete.version;
    ensure!(
        version == VERSION,
        "version is {version}; {VERSION} is allowed"
    );
    Ok(Owner {
        container_id: delete.container_id,
        interface: delete.interface,
    })
}

impl<K: Host> Actor<K> {
    /// Forgets the endpoints and addresses of deletes that were left. The pass that follows takes
    /// out of the kernel what they had there.
    pub(super) fn carry_out_pending(&mut self) {
        let deletes = match self.pending.read() {
            Ok(deletes) => deletes,
            Err(error) => {
                tracing::error!("deletes that were left cannot be read: {error:#}");
                return;
            }
        };
        let owners: Vec<Owner> = deletes.iter().map(|(_, owner)| owner.clone()).collect();
        self.addresses.announce_release(&owners);
        for (path, owner) in deletes {
            if let Err(error) = self.forget_owner(&owner) {
                tracing::error!(%owner, "a delete that was left cannot be carried out: {error}");
                continue;
            }
            self.addresses.release(&owner);
            faults::reach(Point::PendingDeleteDone);
            tracing::info!(%owner, "a delete that was left is carried out");
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let file = path.display();
                    tracing::error!(%file, %error, "a delete that is done stays on disk");
                }
                _ => {}
            }
        }
    }
}
