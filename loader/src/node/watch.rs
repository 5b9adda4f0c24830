//! Following the node document's file.

mod folders;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datapath_common::mark::MarkLayout;
use tokio::sync::{Notify, watch as channel};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use self::folders::Folders;
use crate::document::read_file;
use crate::intent::Node;

/// The file is read this often without any sign of a change: for file systems that give none.
const INTERVAL: Duration = Duration::from_secs(5);
/// A change is read once there was none for this long, so that a writer can finish.
const QUIET: Duration = Duration::from_millis(50);
/// A change is read after this long even if there is no quiet.
const QUIET_MAX: Duration = Duration::from_millis(500);

/// What is known from the node document's file.
#[derive(Clone, Debug, Default)]
pub struct NodeSource {
    /// The last good document; `None` before the first one.
    pub node: Option<Arc<Node>>,
    /// Why the file as it is now is not used, if so. The last good document stays in force.
    pub error: Option<String>,
    /// How often `node` has changed.
    pub generation: u64,
}

/// Reads the file, then follows it until every receiver is dropped. Waits for nothing: a file or
/// folder that is not there yet is an error in the result, and is taken as soon as it appears.
///
/// Must be called inside a tokio runtime.
#[must_use]
pub fn watch(path: PathBuf, mark: MarkLayout) -> channel::Receiver<NodeSource> {
    let signal = Arc::new(Notify::new());
    let mut follower = Follower {
        folders: Folders::new(&path, Arc::clone(&signal)),
        path,
        mark,
        seen: None,
        source: NodeSource::default(),
    };
    follower.reload();
    let (sender, receiver) = channel::channel(follower.source.clone());
    tokio::spawn(run(follower, signal, sender));
    receiver
}

async fn run(mut follower: Follower, signal: Arc<Notify>, sender: channel::Sender<NodeSource>) {
    loop {
        tokio::select! {
            () = sender.closed() => return,
            () = change(&signal) => {}
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
                sender.send_modify(|source| {
                    source.error = Some(format!("the document is no longer followed: {error}"));
                });
                return;
            }
        };
        if changed {
            sender.send_replace(follower.source.clone());
        }
    }
}

/// Waits for a change that has come to rest, or for the interval to pass.
async fn change(signal: &Notify) {
    let start = Instant::now();
    if timeout_at(start + INTERVAL, signal.notified())
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

/// What the file held when it was last read: its text, or why it could not be read.
type Content = Result<String, String>;

struct Follower {
    path: PathBuf,
    mark: MarkLayout,
    folders: Folders,
    seen: Option<Content>,
    source: NodeSource,
}

impl Follower {
    /// Reads the file; whether the source changed.
    fn reload(&mut self) -> bool {
        // First watch, then read: a change in between is seen by one of them.
        self.folders.follow();
        let content = read_file(&self.path).map_err(|e| e.to_string());
        if self.seen.as_ref() == Some(&content) {
            return false;
        }
        let parsed = match &content {
            Ok(text) => super::parse(text, self.mark).map_err(|e| e.to_string()),
            Err(error) => Err(error.clone()),
        };
        self.seen = Some(content);
        self.take(parsed)
    }

    fn take(&mut self, parsed: Result<Node, String>) -> bool {
        let path = self.path.display();
        match parsed {
            Ok(node) => {
                let cleared = self.source.error.take().is_some();
                if self.source.node.as_deref() == Some(&node) {
                    return cleared;
                }
                self.source.generation += 1;
                info!(%path, generation = self.source.generation, "node document taken");
                self.source.node = Some(Arc::new(node));
                true
            }
            Err(error) => {
                let error = format!("{path}: {error}");
                if self.source.error.as_ref() == Some(&error) {
                    return false;
                }
                warn!(%error, "node document refused");
                self.source.error = Some(error);
                true
            }
        }
    }
}
