//! One agent a node.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Name of the lock file in the state folder.
const NAME: &str = "agent.lock";

/// Held while it lives; the kernel releases it with the process, however that ends.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

/// The lock of a folder of pins.
#[derive(Debug)]
pub(super) struct PinsLock {
    root: PathBuf,
    folder: Flock<File>,
}

impl PinsLock {
    /// Takes the lock of a folder that is there. An agent with another state folder would take
    /// every endpoint of this one's for deleted.
    ///
    /// # Errors
    /// When another process holds it, or the folder cannot be opened.
    pub(super) fn take(root: &Path) -> Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            folder: lock_folder(root)?,
        })
    }

    /// Takes the lock of the folder that is at the place by now.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(super) fn renew(&mut self) -> Result<()> {
        let there = fs::metadata(&self.root)?;
        let held = self.folder.metadata()?;
        if (there.dev(), there.ino()) != (held.dev(), held.ino()) {
            *self = Self::take(&self.root)?;
        }
        Ok(())
    }
}

fn lock_folder(root: &Path) -> Result<Flock<File>> {
    let folder = File::open(root).with_context(|| format!("open {}", root.display()))?;
    match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
        Ok(file) => Ok(file),
        Err((_, Errno::EWOULDBLOCK)) => bail!(
            "another agent is running, with another state-dir: it uses {}",
            root.display()
        ),
        Err((_, error)) => Err(error).with_context(|| format!("lock {}", root.display())),
    }
}

impl Lock {
    /// Takes the lock of a state folder, and makes the folder when it is missing.
    ///
    /// # Errors
    /// When another process holds it, whose id is named then; or when the file cannot be made.
    pub fn take(state: &Path) -> Result<Self> {
        fs::create_dir_all(state).with_context(|| format!("make {}", state.display()))?;
        let path = state.join(NAME);
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        // For the message only: whatever stands there is no reason not to start.
        let mut holder = Vec::new();
        file.read_to_end(&mut holder)
            .with_context(|| format!("read {}", path.display()))?;
        let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => bail!(
                "another agent is running (process {}): it holds {}",
                String::from_utf8_lossy(&holder).trim(),
                path.display()
            ),
            Err((_, error)) => {
                return Err(error).with_context(|| format!("lock {}", path.display()));
            }
        };
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_that_is_no_text_keeps_nobody_from_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), b"\xff\0").unwrap();
        Lock::take(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join(NAME)).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_second_one_is_refused_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path()).unwrap();
        let error = Lock::take(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(first);
        Lock::take(folder.path()).unwrap();

        let first = PinsLock::take(folder.path()).unwrap();
        let error = PinsLock::take(folder.path()).unwrap_err().to_string();
        assert!(error.contains("another agent is running"), "{error}");
        drop(first);
        PinsLock::take(folder.path()).unwrap();
    }
}
