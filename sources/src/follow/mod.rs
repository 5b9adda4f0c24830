//! Following what stands in files: read at once, then again whenever it changes.

mod folders;
mod fragments;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch as channel};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use self::folders::Folders;
pub(crate) use self::fragments::{Fragment, Fragments};

/// Files are read this often without any sign of a change: for file systems that give none.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// A change is read once there was none for this long, so that a writer can finish.
const QUIET: Duration = Duration::from_millis(50);
/// A change is read after this long even if there is no quiet.
const QUIET_MAX: Duration = Duration::from_millis(500);

/// State of files that are followed.
#[derive(Debug)]
pub struct Followed<T> {
    /// The last valid content; `None` before the first one.
    pub value: Option<Arc<T>>,
    /// The reason why the current files are not used, if they are not. The last valid content stays
    /// in force.
    pub error: Option<String>,
    /// True if the error is in the content, and not in the access to it.
    pub is_refused: bool,
    /// Number of changes of `value`; 0 for one that an earlier agent kept.
    pub generation: u64,
}

// Derived, it would want `T` to be cloned.
impl<T> Clone for Followed<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            error: self.error.clone(),
            is_refused: self.is_refused,
            generation: self.generation,
        }
    }
}

impl<T> Default for Followed<T> {
    fn default() -> Self {
        Self {
            value: None,
            error: None,
            is_refused: false,
            generation: 0,
        }
    }
}

impl<T> Followed<T> {
    /// State before the source has answered.
    pub fn kept(value: Option<T>) -> Self {
        Self {
            value: value.map(Arc::new),
            ..Self::default()
        }
    }

    /// The reason why the content that was read last is not used.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.error.as_deref().filter(|_| self.is_refused)
    }

    /// True if the value is one that an earlier agent kept: the source has given none yet.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.value.is_some() && self.generation == 0
    }
}

impl<T: PartialEq> Followed<T> {
    /// Records the reason why there is nothing newer; returns true if the known state has changed.
    pub fn fail(&mut self, reason: String, name: &str, place: impl fmt::Display) -> bool {
        let changed = self.take(Err(reason), name, place);
        self.is_refused = false;
        changed
    }

    /// Takes the parsed content, or the reason why it is not used. Returns true if the known state
    /// has changed. `name` is the source's name in the log, `place` its location.
    pub fn take(
        &mut self,
        parsed: Result<T, String>,
        name: &str,
        place: impl fmt::Display,
    ) -> bool {
        let Self {
            value,
            error,
            generation,
            is_refused,
        } = self;
        *is_refused = parsed.is_err();
        match parsed {
            Ok(new) => {
                let cleared = error.take().is_some();
                if *generation > 0 && value.as_deref() == Some(&new) {
                    return cleared;
                }
                *generation += 1;
                info!(path = %place, generation, "{name} taken");
                *value = Some(Arc::new(new));
                true
            }
            Err(reason) => {
                if error.as_ref() == Some(&reason) {
                    return false;
                }
                warn!(error = reason, "{name} refused");
                *error = Some(reason);
                true
            }
        }
    }
}

/// Content of the files, and its reader.
pub(crate) trait Source: Send + 'static {
    /// Content of the files, or the reason why they cannot be read.
    type Content: PartialEq + Send;
    /// Parsed content.
    type Value: PartialEq + Send + Sync + 'static;

    /// Name of the source in the log.
    const NAME: &'static str;

    /// Reads the files.
    fn read(&self, path: &Path) -> Self::Content;

    /// Parses the content. For parts that cannot be used, the last valid content may serve. The
    /// error names the place and the problem.
    fn parse(
        &self,
        path: &Path,
        content: &Self::Content,
        last: Option<&Self::Value>,
    ) -> Result<Self::Value, String>;

    /// The value that an earlier agent kept.
    fn kept(&self, _path: &Path) -> Option<Self::Value> {
        None
    }

    /// Keeps the accepted content for a later agent.
    fn keep(&self, _path: &Path, _content: &Self::Content) {}

    /// Interval at which the files are read without a sign of a change.
    fn interval(&self, _value: Option<&Self::Value>) -> Duration {
        INTERVAL
    }
}

/// Reads the files, then follows them until every receiver is dropped. Waits for nothing: a file
/// or folder that is not there yet is taken as soon as it appears.
///
/// Must be called inside a tokio runtime.
pub(crate) fn watch<S: Source>(path: PathBuf, of: S) -> channel::Receiver<Followed<S::Value>> {
    let signal = Arc::new(Notify::new());
    let mut follower = Follower {
        folders: Folders::new(&path, Arc::clone(&signal), S::NAME),
        followed: Followed::kept(of.kept(&path)),
        path,
        of,
        seen: None,
    };
    follower.reload();
    let (sender, receiver) = channel::channel(follower.followed.clone());
    tokio::spawn(run(follower, signal, sender));
    receiver
}

/// Reads the files once. The answer says why they could not be used now, if so.
pub(crate) fn look<S: Source>(path: &Path, of: &S) -> Result<S::Value, String> {
    of.parse(path, &of.read(path), None)
}

async fn run<S: Source>(
    mut follower: Follower<S>,
    signal: Arc<Notify>,
    sender: channel::Sender<Followed<S::Value>>,
) {
    loop {
        let interval = follower.of.interval(follower.followed.value.as_deref());
        tokio::select! {
            () = sender.closed() => return,
            () = change(&signal, interval) => {}
        }
        // Reading and parsing may take a while; the runtime's threads have other work.
        let reloaded = tokio::task::spawn_blocking(move || {
            let changed = follower.reload();
            (follower, changed)
        });
        let changed;
        (follower, changed) = match reloaded.await {
            Ok(reloaded) => reloaded,
            Err(error) => {
                sender.send_modify(|followed| {
                    let name = S::NAME;
                    followed.error = Some(format!("the {name} is no longer followed: {error}"));
                });
                return;
            }
        };
        if changed {
            sender.send_replace(follower.followed.clone());
        }
    }
}

/// Waits for a change to settle, or for the interval to pass.
async fn change(signal: &Notify, interval: Duration) {
    let start = Instant::now();
    if timeout_at(start + interval, signal.notified())
        .await
        .is_err()
    {
        return;
    }
    let latest = Instant::now() + QUIET_MAX;
    loop {
        let quiet = (Instant::now() + QUIET).min(latest);
        match timeout_at(quiet, signal.notified()).await {
            Ok(()) if Instant::now() < latest => {}
            Ok(()) | Err(_) => return,
        }
    }
}

struct Follower<S: Source> {
    path: PathBuf,
    of: S,
    folders: Folders,
    seen: Option<S::Content>,
    followed: Followed<S::Value>,
}

impl<S: Source> Follower<S> {
    /// Reads the files; returns true if the known state has changed.
    fn reload(&mut self) -> bool {
        // First watch, then read: a change in between is seen by one of them.
        self.folders.follow();
        let content = self.of.read(&self.path);
        if self.seen.as_ref() == Some(&content) {
            return false;
        }
        let last = self.followed.value.as_deref();
        let parsed = self.of.parse(&self.path, &content, last);
        let is_good = parsed.is_ok();
        let is_new = self.followed.take(parsed, S::NAME, self.path.display());
        if is_new && is_good {
            self.of.keep(&self.path, &content);
        }
        self.seen = Some(content);
        is_new
    }
}
