//! A folder of files that exist as a whole or not at all, whenever a process is killed.
//!
//! A file that has taken its name is in force: every process sees it from then on. A folder that
//! cannot be synced may only lose files in a power cut, and no pod outlives that. A failed sync is
//! therefore no error of the write: it is kept for the status, and tried again.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::lock::is_unwritable;
use crate::fault_points::{self, Point};
use loader::stamp::Stamp;

/// Prefix of a temporary file's name.
const TEMPORARY_PREFIX: &str = ".new-";

/// Function that makes a folder durable; tests simulate a failing disk.
type Sync = fn(&Path) -> io::Result<()>;

/// The folder.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    sync: Sync,
    unsynced: Option<String>,
}

/// Parameters of writing a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writing {
    /// True if a power cut must not leave it empty under its name.
    pub(crate) is_synced: bool,
    /// Before the content is written, under a temporary name.
    pub(crate) write: Point,
    /// Before it takes its own name.
    pub(crate) rename: Point,
}

impl Folder {
    /// Opens a folder, creates it if it is missing, and removes unfinished files. Returns the names
    /// of the others.
    ///
    /// # Errors
    /// If the folder cannot be created or read.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<String>)> {
        let made = fs::create_dir_all(path);
        match made {
            // Nothing can be kept there now, which every write reports.
            Err(error) if is_unwritable(&error) => {}
            made => made.with_context(|| format!("make {}", path.display()))?,
        }
        let folder = Self {
            path: path.to_owned(),
            sync: |path| File::open(path)?.sync_all(),
            unsynced: None,
        };
        let mut names = Vec::new();
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            entries => Some(entries.with_context(|| format!("read {}", path.display()))?),
        };
        for entry in entries.into_iter().flatten() {
            let entry = entry.with_context(|| format!("read {}", path.display()))?;
            // No name of ours is anything but ASCII.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if !name.starts_with(TEMPORARY_PREFIX) {
                names.push(name);
            } else if let Err(error) = fs::remove_file(entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "a leftover stays");
            }
        }
        Ok((folder, names))
    }

    /// The folder as it is now.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp::of(&self.path)
    }

    /// The path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file. When this returns, it is in force; after [`Self::sync`] a power cut does not
    /// undo it.
    ///
    /// # Errors
    /// When it cannot be written; the former content is then in force.
    pub(crate) fn put(&self, name: &str, content: &[u8], how: Writing) -> Result<()> {
        let path = self.path(name);
        let write = || -> Result<()> {
            fs::create_dir_all(&self.path)?;
            let mut temporary = tempfile::Builder::new()
                .prefix(TEMPORARY_PREFIX)
                .tempfile_in(&self.path)?;
            fault_points::reach(how.write);
            temporary.write_all(content)?;
            if how.is_synced {
                temporary.as_file().sync_all()?;
            }
            fault_points::reach(how.rename);
            temporary.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("write {}", path.display()))
    }

    /// Removes a file. Absence is success.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", path.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Gives a file another name; makes an empty file of that name where there is none.
    ///
    /// # Errors
    /// When it cannot be done.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let to = self.path(to);
        let renamed = match fs::rename(self.path(from), &to) {
            Err(error) if error.kind() == ErrorKind::NotFound => match File::create(&to) {
                // Without a folder there is no file to confuse with another.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                made => made.map(drop),
            },
            renamed => renamed,
        };
        renamed.with_context(|| format!("write {}", to.display()))
    }

    /// Makes written and removed files durable. If that fails, [`Self::unsynced`] gives the reason.
    pub(crate) fn sync(&mut self) {
        let synced = match (self.sync)(&self.path) {
            // Without a folder there is nothing that could come back.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            synced => synced,
        };
        let failed = synced.err().map(|error| {
            let path = self.path.display();
            format!("a power cut may undo the last changes of {path}, it cannot be synced: {error}")
        });
        if let Some(text) = &failed
            && self.unsynced != failed
        {
            tracing::error!("{text}");
        }
        self.unsynced = failed;
    }

    /// Reason why a power cut may undo the last changes; `None` if it cannot.
    pub(crate) fn unsynced(&self) -> Option<&str> {
        self.unsynced.as_deref()
    }

    /// Replaces the function for every later sync.
    #[cfg(test)]
    pub(crate) fn set_sync(&mut self, sync: Sync) {
        self.sync = sync;
    }
}
