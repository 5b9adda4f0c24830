//! DELs that arrived while no agent answered: one file each, carried out later by the agent or by
//! the plugin.
//!
//! The process that carries out entries holds an exclusive lock on `.lock` in the folder, while it
//! reads the folder and until the last entry is removed. It removes an entry only after the agent's
//! answer. Without the lock, two processes could carry out one DEL, and the second would remove the
//! endpoint of a new ADD of the owner.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::agent::{Agent, CallError};
use crate::failure::{Code, Failure};
use crate::fault_points::{self, Exchange, Point};
use crate::log;
use crate::request::owner::Owner;
use crate::state::lock::{Locked, lock};

/// Version of the entries.
const VERSION: u32 = 1;
/// Name of the folder in the state folder.
pub const FOLDER: &str = "pending-deletes";
const LOCK: &str = ".lock";
const SUFFIX: &str = ".json";
/// Suffix of an unreadable entry's name.
const CORRUPT_SUFFIX: &str = ".corrupt";
/// Prefix of a temporary file's name.
const TEMPORARY_PREFIX: &str = ".new-";
/// Most entries of other owners that one call carries out: the start of a pod waits for it.
const MOST: usize = 16;
/// The time that one call may spend on the entries of other owners.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
/// Age from which on a temporary file is a leftover: writing one takes milliseconds.
const LEFTOVER_AGE: Duration = Duration::from_mins(1);

/// The folder.
#[derive(Clone, Debug)]
pub struct Queue {
    folder: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    version: u32,
    #[serde(flatten)]
    owner: Owner,
    network: String,
}

impl Queue {
    /// The queue below a state folder. Nothing is made before something is queued.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Self {
            folder: state_dir.join(FOLDER),
        }
    }

    /// Queues a DEL. When this returns, it survives a crash of the node.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn push(&self, owner: &Owner, network: &str) -> Result<(), Failure> {
        let entry = Entry {
            version: VERSION,
            owner: owner.clone(),
            network: network.to_owned(),
        };
        self.write(&entry).map_err(|error| {
            let message = format!("the DEL cannot be queued in {}", self.folder.display());
            Failure::new(Code::Io, message).with_details(error.to_string())
        })
    }

    fn write(&self, entry: &Entry) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        fault_points::reach(Point::QueueWrite);
        let mut temporary = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .tempfile_in(&self.folder)?;
        temporary.write_all(&serde_json::to_vec(entry)?)?;
        temporary.as_file().sync_all()?;
        fault_points::reach(Point::QueueRename);
        temporary.persist(self.path(&entry.owner))?;
        fault_points::reach(Point::QueueRenamed);
        self.sync()
    }

    /// Removes the DEL of an owner, which has been carried out. If another process has the queue,
    /// that process has to remove the entry. It may be about to carry the entry out once more, and
    /// nothing new of this owner may come before that.
    pub fn forget(&self, owner: &Owner) {
        let path = self.path(owner);
        if path.exists()
            && let Ok(Some(_lock)) = self.lock(Duration::ZERO, || false)
        {
            Self::remove(&path);
        }
    }

    /// Carries out the queue, the owner's own entry first: that has to be done before anything new
    /// is made for the owner. Other entries wait if another process has the queue, or if the agent
    /// does not answer.
    ///
    /// # Errors
    /// When the owner's own entry could not be carried out.
    pub fn settle(&self, agent: &Agent, own: Option<&Owner>) -> Result<(), Failure> {
        let own = own.map(|owner| self.path(owner));
        let is_own_there = || own.as_ref().is_some_and(|path| path.exists());
        if self.entries().is_empty() {
            return Ok(());
        }
        let _lock = match self.lock(agent.patience(), is_own_there) {
            Ok(Some(lock)) => lock,
            Ok(None) => return Ok(()),
            Err(failure) if is_own_there() => return Err(failure),
            Err(failure) => {
                log::warn(&failure.to_string());
                return Ok(());
            }
        };
        self.remove_leftovers();
        let begun = Instant::now();
        let mut entries = self.entries();
        entries.sort_by_key(|path| Some(path) != own.as_ref());
        let mut others = 0;
        for path in entries {
            let is_own = Some(&path) == own.as_ref();
            if !is_own && (others == MOST || begun.elapsed() > QUEUE_TIMEOUT) {
                break;
            }
            others += usize::from(!is_own);
            // The entries of other owners must not use up the time of our own when the agent hangs.
            let outcome = if is_own {
                Self::carry_out(&path, agent)
            } else {
                Self::carry_out(&path, &agent.hurried(QUEUE_TIMEOUT))
            };
            match outcome {
                Ok(()) => {}
                Err(error) if is_own => {
                    return Err(error.into_failure("a DEL of this container is still queued"));
                }
                Err(error) if error.is_absence() => break,
                Err(error) => log::warn(&format!("{} stays: {error}", path.display())),
            }
        }
        // An entry that reappears after a crash is carried out once more.
        self.sync().ok();
        if is_own_there() {
            let message = "a queued DEL of this container was carried out and cannot be removed";
            return Err(Failure::new(Code::Io, message));
        }
        Ok(())
    }

    /// One entry; one that cannot be read is set aside.
    fn carry_out(path: &Path, agent: &Agent) -> Result<(), CallError> {
        let entry = match read(path) {
            Ok(entry) => entry,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                log::warn(&format!("{} is set aside: {error}", path.display()));
                let mut aside = path.as_os_str().to_owned();
                aside.push(CORRUPT_SUFFIX);
                // If that fails too, the next call reads the entry again.
                fs::rename(path, aside).ok();
                return Ok(());
            }
        };
        agent.detach(&entry.owner, Exchange::Queued)?;
        fault_points::reach(Point::QueueRemove);
        Self::remove(path);
        Ok(())
    }

    /// The lock; `None` if another process has it and nothing needs it. Waits as long as `needed`.
    fn lock(&self, patience: Duration, needed: impl Fn() -> bool) -> Result<Option<File>, Failure> {
        let path = self.folder.join(LOCK);
        match lock(&path, patience, needed) {
            Ok(Locked::Ours(file)) => Ok(Some(file)),
            Ok(Locked::NotNeeded) => Ok(None),
            Ok(Locked::TooLong) => {
                let message = "a queued DEL of this container is being carried out";
                Err(Failure::new(Code::TryAgainLater, message))
            }
            Err(error) => {
                let message = format!("{} cannot be locked", path.display());
                Err(Failure::new(Code::Io, message).with_details(error.to_string()))
            }
        }
    }

    /// Files of entries. A folder that is not there or cannot be read has none.
    fn entries(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return Vec::new();
        };
        let paths = entries.flatten().map(|entry| entry.path());
        paths.filter(|path| is_entry(path)).collect()
    }

    /// Removes temporary files of calls that were killed. A young one may belong to a running call.
    fn remove_leftovers(&self) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for entry in entries {
            let is_temporary = entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(TEMPORARY_PREFIX.as_bytes());
            let age = entry.metadata().and_then(|meta| meta.modified());
            let age = age.ok().and_then(|time| time.elapsed().ok());
            if is_temporary && age.is_some_and(|age| age > LEFTOVER_AGE) {
                Self::remove(&entry.path());
            }
        }
    }

    /// Failing leaves an entry that is carried out once more. Nothing new is made for its owner
    /// before that.
    fn remove(path: &Path) {
        match fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => log::warn(&format!("{} stays: {error}", path.display())),
        }
    }

    fn path(&self, owner: &Owner) -> PathBuf {
        self.folder.join(owner.endpoint_id() + SUFFIX)
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

fn is_entry(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(SUFFIX) && !name.starts_with('.'))
}

fn read(path: &Path) -> io::Result<Entry> {
    let entry: Entry = serde_json::from_slice(&fs::read(path)?)?;
    if entry.version == VERSION {
        return Ok(entry);
    }
    let message = format!("version is {}: {VERSION} is allowed", entry.version);
    Err(io::Error::new(ErrorKind::InvalidData, message))
}
