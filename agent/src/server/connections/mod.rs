//! Connections of a server: their limit, and the choice of the one that makes room for the next.
//!
//! A server always accepts. If all slots are taken, a connection without a request in work is
//! closed. So connections that send nothing, or that take no answer, cannot block the server.

mod serve;
mod slots;

use std::hash::Hash;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{Backlog, listen};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep;

use self::slots::{Phase, Room, Slots};

pub(crate) use self::serve::{Times, serve};

/// Connections that the kernel holds for a server until it accepts them. A burst that fits is not
/// dropped.
const QUEUE: i32 = 4096;

/// Makes a listener's queue longer than libraries make it.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn lengthen_queue(listener: &impl AsFd) -> io::Result<()> {
    Ok(listen(&listener, Backlog::new(QUEUE)?)?)
}

/// All connections of a server. `P` identifies a peer.
#[derive(Debug)]
pub(crate) struct Connections<P> {
    slots: Mutex<Slots<P>>,
    /// A connection ended, or has an answer.
    changed: Notify,
}

/// A connection's slot, which is free again once this is dropped.
#[derive(Debug)]
pub(crate) struct Slot<P: Copy + Eq + Hash> {
    all: Arc<Connections<P>>,
    id: u64,
    evicted: Arc<Notify>,
}

impl<P: Copy + Eq + Hash> Connections<P> {
    /// As many slots as `limit`.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: Mutex::new(Slots::new(limit)),
            changed: Notify::new(),
        })
    }

    /// Takes a slot for a peer's connection. If none is free, another connection is evicted. If all
    /// have requests in work, this waits.
    pub(crate) async fn admit(self: &Arc<Self>, peer: P) -> Slot<P> {
        loop {
            let changed = self.changed.notified();
            let patience = match self.slots().take(peer, Instant::now()) {
                Room::Taken { id, evicted } => {
                    let all = Arc::clone(self);
                    return Slot { all, id, evicted };
                }
                Room::After(wait) => Some(wait),
                Room::AfterChange => None,
            };
            tokio::select! {
                () = changed => {}
                () = sleep(patience.unwrap_or(Duration::MAX)) => {}
            }
        }
    }

    /// Evicts the connection that is the next to be closed.
    pub(crate) fn evict(&self) {
        self.slots().evict();
    }

    /// Waits until no connection is left.
    pub(crate) async fn end(&self) {
        loop {
            let changed = self.changed.notified();
            if self.slots().is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots<P>> {
        // Nothing is left half done by who panics with the lock.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Copy + Eq + Hash> Slot<P> {
    /// Notes how far the connection has got.
    fn enter(&self, phase: Phase) {
        self.all.slots().enter(self.id, phase, Instant::now());
        self.all.changed.notify_one();
    }

    /// Serves the connection until it ends, is evicted, or has lasted for `limit`.
    async fn serve(&self, limit: Duration, connection: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = connection => {}
            () = self.eviction() => tracing::debug!("a connection was replaced by a newer one"),
            () = sleep(limit) => tracing::debug!("a connection lasted too long"),
        }
    }

    /// Waits until the connection has to end.
    async fn eviction(&self) {
        loop {
            self.evicted.notified().await;
            // Where the agent was busy, the request lies in the socket: it is read first.
            yield_now().await;
            if self.all.slots().is_evicted(self.id) {
                return;
            }
        }
    }
}

impl<P: Copy + Eq + Hash> Drop for Slot<P> {
    fn drop(&mut self) {
        self.all.slots().free(self.id);
        self.all.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use axum::Router;
    use axum::routing::get;

    use super::slots::MIN_AGE;
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn a_connection_without_work_gives_way_and_one_with_work_does_not() {
        let all = Connections::new(2);
        let (idle, busy) = (all.admit(1).await, all.admit(2).await);
        busy.enter(Phase::Handling);
        // It ends at once, and not after the hour.
        let idle = async move { idle.serve(HOUR, std::future::pending()).await };
        let ((), third) = tokio::join!(idle, all.admit(3));

        third.enter(Phase::Handling);
        let late = tokio::time::timeout(Duration::from_millis(50), all.admit(4)).await;
        assert!(late.is_err(), "all have work in hand");
        drop(busy);
        let fourth = all.admit(4).await;
        drop((third, fourth));
        all.end().await;
    }

    #[tokio::test]
    async fn a_request_that_lies_in_the_socket_is_answered() {
        let all = Connections::new(1);
        let (mut client, server) = UnixStream::pair().expect("two sockets");
        let request = b"GET / HTTP/1.1\r\nHost: towpath\r\n\r\n";
        client.write_all(request).expect("room");
        server.set_nonblocking(true).expect("a socket");
        let server = tokio::net::UnixStream::from_std(server).expect("a socket");
        let router = Router::new().route("/", get(async || "answer"));
        let times = Times {
            head: HOUR,
            whole: HOUR,
        };
        let slot = all.admit(1).await;
        let served = tokio::spawn(serve(slot, server, router, times));
        // The agent was busy for so long that it has not read yet.
        let next = all.slots().take(2, Instant::now() + MIN_AGE);
        assert!(matches!(next, Room::AfterChange), "{next:?}");
        served.await.expect("no panic");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("text");
        assert!(answer.ends_with("answer"), "{answer}");
    }
}
