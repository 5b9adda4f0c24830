//! Deletes that the CNI plugin left on disk while no agent answered.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use api::ids::Owner;
use serde::Deserialize;

use crate::actor::Actor;
use crate::fault_points::{self, Point};
use crate::host::kernel::Host;
use document::read_file;
use loader::stamp::Stamp;

/// Version of the files.
const VERSION: u32 = 1;

/// Name of the lock that is held while deletes are carried out, in their folder
/// (`docs/guide/cni.md`).
const LOCK: &str = ".lock";

/// A file of a delete, and the owner whose endpoint is deleted.
type Left = (PathBuf, Owner);

/// One delete.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Delete {
    version: u32,
    container_id: String,
    interface: String,
}

/// The folder of deletes, and its files that are no deletes.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    folder: PathBuf,
    bad: Vec<PathBuf>,
}

impl Pending {
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            bad: Vec::new(),
        }
    }

    /// The folder as it is now.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp::of(&self.folder)
    }

    /// The files that are no deletes. They stay where they are.
    pub(crate) fn bad(&self) -> &[PathBuf] {
        &self.bad
    }

    /// Pending deletes: files and owners. A missing folder has none.
    fn read(&mut self) -> Result<Vec<Left>> {
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
            // A file whose name begins with a dot is still being written.
            if name.starts_with('.') || path.extension() != Some(OsStr::new("json")) {
                continue;
            }
            match parse(&path) {
                Ok(owner) => deletes.push((path, owner)),
                Err(error) => {
                    if !self.bad.contains(&path) {
                        let file = path.display();
                        tracing::error!(%file, "cannot read a queued delete: {error:#}");
                    }
                    bad.push(path);
                }
            }
        }
        self.bad = bad;
        Ok(deletes)
    }
}

impl Pending {
    /// The pending deletes, and the lock that keeps other processes from carrying them out at the
    /// same time. A late delete would remove new objects of the owner. `None` if there are none, or
    /// if another process carries them out.
    fn take(&mut self) -> Result<Option<(Vec<Left>, File)>> {
        if self.read()?.is_empty() {
            return Ok(None);
        }
        let path = self.folder.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let lock = lock.with_context(|| format!("open {}", path.display()))?;
        match lock.try_lock() {
            // Other processes may have carried some out before the lock was ours.
            Ok(()) => Ok(Some((self.read()?, lock))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("lock {}", path.display()))
            }
        }
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
    pub(crate) fn carry_out_pending(&mut self) {
        let (deletes, _lock) = match self.records.pending.take() {
            Ok(Some(taken)) => taken,
            Ok(None) => return,
            Err(error) => {
                tracing::error!("cannot read the queue of deletes: {error:#}");
                return;
            }
        };
        let owners: Vec<Owner> = deletes.iter().map(|(_, owner)| owner.clone()).collect();
        let now = self.addresses.announce_release(&owners);
        for (path, owner) in deletes {
            if let Err(error) = self.forget_owner(&owner) {
                tracing::error!(%owner, "cannot complete a queued delete: {error}");
                continue;
            }
            self.addresses.release(&owner, now);
            fault_points::reach(Point::PendingDeleteDone);
            tracing::info!(%owner, "completed a queued delete");
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let file = path.display();
                    tracing::error!(%file, %error, "cannot remove a completed delete from disk");
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_carries_out_is_left_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut pending = Pending::new(folder.path());
        assert!(pending.take().unwrap().is_none(), "nothing is there");
        let text = r#"{"version": 1, "container-id": "a", "interface": "eth0", "network": "n"}"#;
        fs::write(folder.path().join("a.json"), text).unwrap();
        let (left, lock) = pending.take().unwrap().unwrap();
        assert_eq!(left.len(), 1);
        assert!(pending.take().unwrap().is_none(), "somebody is at it");
        drop(lock);
        assert!(pending.take().unwrap().is_some());
    }
}
