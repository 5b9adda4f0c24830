//! Another network namespace, entered by threads of its own only.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use nix::sched::{CloneFlags, setns};
use tokio::sync::oneshot;

/// A network namespace other than the calling thread's.
pub(super) struct NetNs {
    path: PathBuf,
    file: Arc<File>,
}

impl NetNs {
    /// Opens the namespace of a path.
    ///
    /// # Errors
    /// When there is none, or when it is the caller's own: a pod on the host's network is none of
    /// ours, and its routes would be the node's.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        // Not blocking: whoever names a FIFO gets an error and not our thread.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .with_context(|| format!("open the netns {}", path.display()))?;
        let theirs = file.metadata().context("look at the netns")?;
        let own = std::fs::metadata("/proc/thread-self/ns/net").context("look at our netns")?;
        if (theirs.dev(), theirs.ino()) == (own.dev(), own.ino()) {
            bail!(
                "netns {} is the host's own: only a pod's own network namespace is allowed",
                path.display()
            );
        }
        Ok(Self {
            path: path.to_owned(),
            file: Arc::new(file),
        })
    }

    /// The open namespace.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Does something inside the namespace, on a thread that ends with it: a thread of the runtime
    /// never leaves the host's namespace.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let file = Arc::clone(&self.file);
        let (sender, receiver) = oneshot::channel();
        std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn(move || {
                let entered = setns(&*file, CloneFlags::CLONE_NEWNET);
                // The receiver is gone only when nobody waits any more.
                drop(sender.send(entered.map(|()| work())));
            })
            .context("start a thread for the netns")?;
        let done = receiver
            .await
            .map_err(|_gone| io::Error::other("the thread in the netns died"))?;
        done.with_context(|| {
            format!(
                "{} is no network namespace that can be entered",
                self.path.display()
            )
        })
    }
}
