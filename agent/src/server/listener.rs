//! The socket: who may connect, how many, and for how long.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use axum::Router;
use tokio::net::UnixListener;
use tokio::net::unix::UCred;

use super::handle::Handle;
use super::routes;
use crate::server::connections;
use crate::server::connections::{Connections, Times};

/// The wait before the next try where no connection can be accepted.
const PAUSE: Duration = Duration::from_millis(20);

/// Bounds on what callers can take up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at a time. Beyond, an idle or slow one is evicted for the next.
    pub connections: usize,
    /// The limit of time of a request's head, and again of its body.
    pub request: Duration,
    /// The limit of time of a connection.
    pub connection: Duration,
}

impl Default for ServerLimits {
    /// A node starts at most some dozens of pods at a time.
    fn default() -> Self {
        Self {
            connections: 128,
            request: Duration::from_secs(5),
            connection: Duration::from_secs(30),
        }
    }
}

/// The bound socket.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// Inode of the socket's file: what stands at the path later may be another agent's.
    inode: u64,
    limits: ServerLimits,
    /// Those that are open, by the caller's process.
    connections: Arc<Connections<Option<i32>>>,
}

impl Server {
    /// Binds the socket with mode 0600, and replaces one that an earlier agent left. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// If the socket cannot be created, if a process listens on the path, or if the path is no
    /// socket.
    pub fn bind(path: &Path, limits: ServerLimits) -> Result<Self> {
        check_free(path)?;
        // The socket is bound under another name, so no caller can connect before the mode is set.
        let unready = unready_path(path);
        remove_if_there(&unready)?;
        let listener =
            UnixListener::bind(&unready).with_context(|| format!("bind {}", unready.display()))?;
        connections::lengthen_queue(&listener)
            .with_context(|| format!("listen at {}", unready.display()))?;
        std::fs::set_permissions(&unready, Permissions::from_mode(0o600))
            .with_context(|| format!("set the mode of {}", unready.display()))?;
        let inode = inode(&unready)?;
        std::fs::rename(&unready, path)
            .with_context(|| format!("put the socket at {}", path.display()))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            inode,
            limits,
            connections: Connections::new(limits.connections),
        })
    }

    /// Serves until the future is dropped.
    pub async fn serve(&self, handle: Handle) {
        let times = Times {
            head: self.limits.request,
            whole: self.limits.connection,
        };
        let [all, blind] =
            [true, false].map(|sees| routes::router(handle.clone(), self.limits.request, sees));
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let peer = stream.peer_cred();
                    // A process outside of the agent's PID namespace has the number 0.
                    let pid = peer.as_ref().ok().and_then(UCred::pid);
                    let all = if pid == Some(0) { &blind } else { &all };
                    let slot = self.connections.admit(pid).await;
                    if let Some(router) = router_for(peer, all) {
                        tokio::spawn(connections::serve(slot, stream, router, times));
                    }
                }
                Err(error) => {
                    // Out of file descriptors, most likely: asking again at once would spin.
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.connections.evict();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits until the accepted callers have their answers, at most for `patience`. No other caller
    /// is accepted.
    pub async fn finish(self, patience: Duration) {
        let ended = tokio::time::timeout(patience, self.connections.end()).await;
        if ended.is_err() {
            tracing::debug!("a connection outlasts the server");
        }
    }
}

/// Chooses what a caller may ask.
fn router_for(peer: io::Result<UCred>, all: &Router) -> Option<Router> {
    match peer {
        Ok(peer) if peer.uid() == 0 => Some(all.clone()),
        Ok(peer) => {
            let (uid, pid) = (peer.uid(), peer.pid());
            tracing::warn!(uid, pid, "refused a caller who is not root");
            Some(routes::refusal(uid))
        }
        Err(error) => {
            tracing::warn!(%error, "refused a caller whose identity cannot be read");
            None
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode)
            && let Err(error) = remove_if_there(&self.path)
        {
            tracing::warn!(%error, "the socket was not removed");
        }
    }
}

/// Checks that the path does not exist, or is a socket without a listener.
fn check_free(path: &Path) -> Result<()> {
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("look at {shown}")),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            bail!("{shown} is there and is no socket; allowed for `socket`: a path of its own")
        }
        Ok(_socket) => {}
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        bail!("another process listens at {shown}; expected for `socket`: an unused path");
    }
    Ok(())
}

/// Where the socket is made: beside its place, hidden.
fn unready_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

fn inode(path: &Path) -> Result<u64> {
    let metadata = std::fs::symlink_metadata(path);
    Ok(metadata
        .with_context(|| format!("look at {}", path.display()))?
        .ino())
}

fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
    }
}
