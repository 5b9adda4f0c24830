//! Locks between calls (flock): the kernel releases them when their process ends.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Code, Failure};
use crate::request::owner::Owner;

/// Interval between attempts at a lock that another call holds.
const RETRY: Duration = Duration::from_millis(5);
/// Folder of the locks of owners, in the state folder.
const FOLDER: &str = "delegated";
/// Number of digits of an owner's id that choose its lock: there are few files, and none has to be
/// removed.
const DIGITS: usize = 2;

/// Result of a request for a lock.
#[derive(Debug)]
pub(crate) enum Locked {
    /// It is ours until this is dropped.
    Ours(File),
    /// Another call holds it, and it is not needed.
    NotNeeded,
    /// Another call has held it for too long.
    TooLong,
}

/// Locks a file. Waits while another call holds the lock and it is needed.
///
/// # Errors
/// When the file cannot be opened or locked.
pub(crate) fn lock(
    path: &Path,
    patience: Duration,
    needed: impl Fn() -> bool,
) -> io::Result<Locked> {
    let deadline = Instant::now() + patience;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Locked::Ours(file)),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if !needed() => return Ok(Locked::NotNeeded),
            Err(TryLockError::WouldBlock) if Instant::now() > deadline => {
                return Ok(Locked::TooLong);
            }
            // A lock that is waited for without end would outlast the runtime's patience.
            Err(TryLockError::WouldBlock) => thread::sleep(RETRY),
        }
    }
}

/// Serializes an owner's calls to a delegated plugin, until the returned file is dropped: the
/// second call sees the result of the first. Calls for other owners may have to wait too.
///
/// # Errors
/// When the lock cannot be had.
pub(crate) fn take_turn(
    state_dir: &Path,
    owner: &Owner,
    patience: Duration,
) -> Result<File, Failure> {
    let folder = state_dir.join(FOLDER);
    let id = owner.endpoint_id();
    let path = folder
        .join(id.get(..DIGITS).unwrap_or(&id))
        .with_extension("lock");
    let locked = fs::create_dir_all(&folder).and_then(|()| lock(&path, patience, || true));
    match locked {
        Ok(Locked::Ours(file)) => Ok(file),
        Ok(Locked::NotNeeded | Locked::TooLong) => {
            let message = "another call for this container is in progress";
            Err(Failure::new(Code::TryAgainLater, message))
        }
        Err(error) => {
            let message = format!("{} cannot be locked", path.display());
            Err(Failure::new(Code::Io, message).with_details(error.to_string()))
        }
    }
}
