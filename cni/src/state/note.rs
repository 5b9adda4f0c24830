//! A note that the agent was ready in this boot.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Holds an id that each boot of the node has of its own.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Name of the note in the state folder.
const FILE: &str = "was-ready";
/// Prefix of temporary files' names.
const TEMPORARY_PREFIX: &str = ".new-";

/// The note. It names its boot, for a state folder on a disk outlives a reboot.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    folder: PathBuf,
}

impl Note {
    /// The note in a state folder.
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            folder: state_dir.to_owned(),
        }
    }

    /// True if the note is of this boot. An unreadable note is not.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        match (fs::read(BOOT_ID), fs::read(self.path())) {
            (Ok(boot), Ok(noted)) => boot == noted,
            _ => false,
        }
    }

    /// Writes the note atomically. It needs no sync, since it is invalid after a crash of the
    /// machine.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub(crate) fn leave(&self) -> io::Result<()> {
        let boot = fs::read(BOOT_ID)?;
        fs::create_dir_all(&self.folder)?;
        let mut temporary = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .tempfile_in(&self.folder)?;
        temporary.write_all(&boot)?;
        temporary.persist(self.path())?;
        Ok(())
    }

    /// Removes it; true if it was there.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(crate) fn remove(&self) -> io::Result<bool> {
        match fs::remove_file(self.path()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Path of the note.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }
}
