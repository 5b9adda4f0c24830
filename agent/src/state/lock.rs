//! One agent a node.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Name of the lock file in the state folder.
const NAME: &str = "agent.lock";

/// The time that an agent waits for the one before it, which may be about to end.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// The time between attempts.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// The result of an attempt to take a lock.
pub(crate) enum Attempt<T> {
    /// It is taken.
    Taken(T),
    /// Another process has it, which this names.
    Busy(String),
}

/// Takes a lock, and waits for its holder to end if necessary.
///
/// # Errors
/// If the lock is still held after `wait`, or if the attempt fails.
pub(crate) fn patiently<T>(
    wait: Duration,
    mut attempt: impl FnMut() -> Result<Attempt<T>>,
) -> Result<T> {
    let deadline = Instant::now() + wait;
    loop {
        match attempt()? {
            Attempt::Taken(lock) => return Ok(lock),
            Attempt::Busy(who) if Instant::now() >= deadline => bail!(who),
            Attempt::Busy(_) => thread::sleep(TICK),
        }
    }
}

/// True if an error says that nothing can be written where it was tried.
pub(crate) fn is_unwritable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ReadOnlyFilesystem | ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

/// Held while it lives; the kernel releases it with the process, however that ends.
#[derive(Debug)]
pub struct Lock {
    _file: Option<Flock<File>>,
}

/// The lock of a folder of pins.
#[derive(Debug)]
pub(crate) struct PinsLock {
    root: PathBuf,
    folder: Flock<File>,
}

impl PinsLock {
    /// Takes the lock of a folder that is there. An agent with another state folder would take
    /// every endpoint of this one's for deleted.
    ///
    /// # Errors
    /// When another process holds it, or the folder cannot be opened.
    pub(crate) fn take(root: &Path, wait: Duration) -> Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            folder: patiently(wait, || lock_folder(root))?,
        })
    }

    /// Takes the lock of the folder that is at the place by now.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) fn renew(&mut self) -> Result<()> {
        let there = fs::metadata(&self.root)?;
        let held = self.folder.metadata()?;
        if (there.dev(), there.ino()) != (held.dev(), held.ino()) {
            *self = Self::take(&self.root, Duration::ZERO)?;
        }
        Ok(())
    }
}

fn lock_folder(root: &Path) -> Result<Attempt<Flock<File>>> {
    let folder = File::open(root).with_context(|| format!("open {}", root.display()))?;
    match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
        Ok(file) => Ok(Attempt::Taken(file)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(Attempt::Busy(format!(
            "another agent is running, with another state-dir: it uses {}",
            root.display()
        ))),
        Err((_, error)) => Err(error).with_context(|| format!("lock {}", root.display())),
    }
}

impl Lock {
    /// Takes the lock of a state folder, and makes the folder when it is missing. Where nothing can
    /// be written, there may be none to hold.
    ///
    /// # Errors
    /// When another process holds it after so long, whose id is named then; or when the file cannot
    /// be made.
    pub fn take(state: &Path, wait: Duration) -> Result<Self> {
        let path = state.join(NAME);
        let file = match open(state, &path) {
            Ok(file) => Some(file),
            Err(error) if is_unwritable(&error) => {
                tracing::error!(path = %path.display(), %error, "the state folder cannot be written");
                File::open(&path).or_else(|_| File::open(state)).ok()
            }
            Err(error) => return Err(error).with_context(|| format!("open {}", path.display())),
        };
        let Some(file) = file else {
            return Ok(Self { _file: None });
        };
        let file = patiently(wait, || hold(&file, &path))?;
        if let Err(error) = sign(&file)
            && !is_unwritable(&error)
        {
            tracing::debug!(path = %path.display(), %error, "the lock is without a process id");
        }
        Ok(Self { _file: Some(file) })
    }
}

fn open(state: &Path, path: &Path) -> io::Result<File> {
    fs::create_dir_all(state)?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path)
}

/// Locks a file, and keeps the original descriptor open.
fn hold(file: &File, path: &Path) -> Result<Attempt<Flock<File>>> {
    let same = file.try_clone();
    let same = same.with_context(|| format!("open {}", path.display()))?;
    match Flock::lock(same, FlockArg::LockExclusiveNonblock) {
        Ok(file) => Ok(Attempt::Taken(file)),
        Err((mut file, Errno::EWOULDBLOCK)) => {
            // For the message only: whatever stands there is no reason not to start.
            let mut holder = Vec::new();
            let read = file.rewind().and_then(|()| file.read_to_end(&mut holder));
            read.with_context(|| format!("read {}", path.display()))?;
            Ok(Attempt::Busy(format!(
                "another agent is running (process {}): it holds {}",
                String::from_utf8_lossy(&holder).trim(),
                path.display()
            )))
        }
        Err((_, error)) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

/// Writes the process's id into a lock file.
fn sign(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_that_is_no_text_keeps_nobody_from_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), b"\xff\0").unwrap();
        Lock::take(folder.path(), Duration::ZERO).unwrap();
        let text = fs::read_to_string(folder.path().join(NAME)).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_second_one_is_refused_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path(), Duration::ZERO).unwrap();
        let error = Lock::take(folder.path(), Duration::ZERO)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(first);
        Lock::take(folder.path(), Duration::ZERO).unwrap();

        let first = PinsLock::take(folder.path(), Duration::ZERO).unwrap();
        let error = PinsLock::take(folder.path(), Duration::ZERO)
            .unwrap_err()
            .to_string();
        assert!(error.contains("another agent is running"), "{error}");
        drop(first);
        PinsLock::take(folder.path(), Duration::ZERO).unwrap();
    }

    #[test]
    fn the_one_before_may_take_its_time_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path(), Duration::ZERO).unwrap();
        let ends = thread::spawn(|| drop(first));
        Lock::take(folder.path(), LOCK_TIMEOUT).unwrap();
        ends.join().unwrap();
    }
}
