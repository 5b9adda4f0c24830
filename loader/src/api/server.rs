//! The socket: who may connect, how many, and for how long.

use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::handle::Handle;
use super::routes;

/// Bounds on what callers can take up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at a time; more wait in the socket's backlog.
    pub connections: usize,
    /// How long the request's head may take, and its body again.
    pub request: Duration,
    /// How long a connection may last.
    pub connection: Duration,
}

impl Default for ServerLimits {
    /// A node starts at most some dozens of pods at a time.
    fn default() -> Self {
        Self {
            connections: 64,
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
    /// One for each connection that may be open.
    permits: Arc<Semaphore>,
}

impl Server {
    /// Binds the socket with mode 0600, in the place of one that an earlier agent left. Must be
    /// called inside a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be made there, somebody listens there, or something else than a
    /// socket is there.
    pub fn bind(path: &Path, limits: ServerLimits) -> Result<Self> {
        check_free(path)?;
        // Made under another name: nobody can connect before the mode is right.
        let unready = unready_path(path);
        remove_if_there(&unready)?;
        let listener =
            UnixListener::bind(&unready).with_context(|| format!("bind {}", unready.display()))?;
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
            permits: Arc::new(Semaphore::new(limits.connections)),
        })
    }

    /// Serves until the future is dropped.
    pub async fn serve(&self, handle: Handle) {
        loop {
            let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (handle, limits) = (handle.clone(), self.limits);
                    tokio::spawn(async move {
                        serve_connection(stream, handle, limits).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: asking again at once would spin.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Waits until the callers that were let in have their answers, at most for `patience`; nobody
    /// else is let in.
    pub async fn finish(self, patience: Duration) {
        let all = u32::try_from(self.limits.connections).unwrap_or(u32::MAX);
        let ended = tokio::time::timeout(patience, self.permits.acquire_many(all)).await;
        if ended.is_err() {
            tracing::debug!("a connection outlasts the server");
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

async fn serve_connection(stream: UnixStream, handle: Handle, limits: ServerLimits) {
    let router = match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 => routes::router(handle, limits.request),
        Ok(peer) => {
            tracing::warn!(
                uid = peer.uid(),
                pid = peer.pid(),
                "refused a caller who is not root"
            );
            routes::refusal(peer.uid())
        }
        Err(error) => {
            tracing::warn!(%error, "refused a caller whose identity cannot be read");
            return;
        }
    };
    // One request a connection: nobody can hold one open and idle.
    let serve = http1::Builder::new()
        .keep_alive(false)
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(limits.connection, serve).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
        Err(_elapsed) => tracing::debug!("a connection lasted too long"),
    }
}

/// Checks that the path leads to nothing, or to a socket that nobody listens at.
fn check_free(path: &Path) -> Result<()> {
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("look at {shown}")),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            bail!("{shown} is there and is no socket; allowed for `socket`: a path of its own")
        }
        Ok(_socket) => {}
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        bail!("somebody listens at {shown}; allowed for `socket`: a path of its own");
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
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
    }
}
