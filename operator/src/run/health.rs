//! Health: each worker of the operator comes round, and the nodes are listed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The limit of a worker that hands objects over: the inbox may be full while the main loop is slow.
pub(super) const HANDS_OVER: Duration = Duration::from_mins(1);
/// The beat of a worker that waits for others.
const RESTS: u64 = u64::MAX;

/// The health of all workers.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    since: Instant,
    workers: Arc<Mutex<Vec<Worker>>>,
    is_listed: Arc<AtomicBool>,
}

/// A worker, as the probes see it.
#[derive(Debug)]
struct Worker {
    name: &'static str,
    limit: Duration,
    beat: Beat,
}

/// The beat of a worker. A worker that does not beat within its limit has stalled, unless it rests.
#[derive(Clone, Debug)]
pub(crate) struct Beat {
    since: Instant,
    /// Milliseconds of the last beat after `since`.
    at: Arc<AtomicU64>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            workers: Arc::default(),
            is_listed: Arc::default(),
        }
    }
}

impl Health {
    /// The beat of a new worker, which has its first one now.
    pub(crate) fn worker(&self, name: &'static str, limit: Duration) -> Beat {
        let beat = Beat {
            since: self.since,
            at: Arc::default(),
        };
        beat.beat();
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.push(Worker {
            name,
            limit,
            beat: beat.clone(),
        });
        beat
    }

    /// The nodes were listed.
    pub(super) fn list(&self) {
        self.is_listed.store(true, Ordering::Relaxed);
    }

    /// The reason that the operator is not alive, if it is not.
    #[must_use]
    pub(crate) fn fault(&self) -> Option<String> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stalled = workers.iter().filter_map(Worker::stalled);
        let (name, quiet) = stalled.next()?;
        let quiet = quiet.as_secs();
        Some(format!("{name} has not come round for {quiet} s"))
    }

    /// The reason that the operator could not lead, if it could not.
    #[must_use]
    pub(crate) fn unready(&self) -> Option<String> {
        let is_listed = self.is_listed.load(Ordering::Relaxed);
        let unlisted =
            || "the API server has not listed the CiliumNodes yet: see the log".to_owned();
        self.fault().or_else(|| (!is_listed).then(unlisted))
    }
}

impl Worker {
    /// Its name, and the time for which it has been stalled, if it is.
    fn stalled(&self) -> Option<(&'static str, Duration)> {
        let quiet = self.beat.quiet()?;
        (quiet >= self.limit).then_some((self.name, quiet))
    }
}

impl Beat {
    /// The worker came round.
    pub(crate) fn beat(&self) {
        self.at.store(self.age(), Ordering::Relaxed);
    }

    /// Rests until others have something for the worker, however long that takes.
    pub(crate) async fn rest<T>(&self, wait: impl Future<Output = T>) -> T {
        self.at.store(RESTS, Ordering::Relaxed);
        let come = wait.await;
        self.beat();
        come
    }

    /// The time since the last beat; none at rest.
    fn quiet(&self) -> Option<Duration> {
        let at = self.at.load(Ordering::Relaxed);
        let quiet = Duration::from_millis(self.age().saturating_sub(at));
        (at != RESTS).then_some(quiet)
    }

    fn age(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(RESTS - 1)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::advance;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);
    const ALMOST: Duration = Duration::from_secs(29);

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_does_not_come_round_has_stalled_and_is_named() {
        let health = Health::default();
        let main = health.worker("the main loop", LIMIT);
        let slow = health.worker("the slow one", LIMIT * 2);
        advance(ALMOST).await;
        assert_eq!(health.fault(), None);
        main.beat();
        advance(LIMIT).await;
        let stalled = "the main loop has not come round for 30 s".to_owned();
        assert_eq!(health.fault(), Some(stalled));
        main.beat();
        assert_eq!(health.fault(), None, "the slow one has more time");
        advance(ALMOST).await;
        main.beat();
        let stalled = "the slow one has not come round for 88 s".to_owned();
        assert_eq!(health.fault(), Some(stalled));
        slow.beat();
        assert_eq!(health.fault(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_rests_has_not_stalled_and_its_time_begins_afterwards() {
        let health = Health::default();
        let beat = health.worker("the follower", LIMIT);
        let (event, come) = oneshot::channel();
        let working = tokio::spawn(async move {
            let come = beat.rest(come).await;
            // It is stuck with what has come.
            std::future::pending::<()>().await;
            come
        });
        tokio::task::yield_now().await;
        advance(LIMIT * 100).await;
        assert_eq!(health.fault(), None);
        event.send(()).unwrap();
        tokio::task::yield_now().await;
        advance(ALMOST).await;
        assert_eq!(health.fault(), None);
        advance(LIMIT.abs_diff(ALMOST)).await;
        let stalled = "the follower has not come round for 30 s".to_owned();
        assert_eq!(health.fault(), Some(stalled));
        working.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_is_ready_once_it_knows_the_nodes_and_as_long_as_its_workers_come_round() {
        let health = Health::default();
        let _main = health.worker("the main loop", LIMIT);
        assert_eq!(health.fault(), None);
        assert!(health.unready().unwrap().contains("CiliumNodes"));
        health.clone().list();
        assert_eq!(health.unready(), None);
        advance(LIMIT).await;
        assert_eq!(health.unready(), health.fault());
        assert!(health.unready().unwrap().ends_with("for 30 s"));
    }
}
