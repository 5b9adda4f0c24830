//! Health: the operator's main loop comes round, and knows the nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A loop that has not come round for so long has stalled.
const STALLED: Duration = Duration::from_secs(30);

/// The health of the main loop.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    since: Instant,
    beat: Arc<AtomicU64>,
    is_listed: Arc<AtomicBool>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            beat: Arc::default(),
            is_listed: Arc::default(),
        }
    }
}

impl Health {
    /// The loop came round.
    pub(super) fn beat(&self) {
        self.beat.store(self.age(), Ordering::Relaxed);
    }

    /// The nodes were listed.
    pub(super) fn list(&self) {
        self.is_listed.store(true, Ordering::Relaxed);
    }

    /// The reason that the operator is not alive, if it is not.
    #[must_use]
    pub(crate) fn fault(&self) -> Option<String> {
        let quiet = self.stalled()?.as_secs();
        Some(format!("the main loop has not come round for {quiet} s"))
    }

    /// The reason that the operator could not lead, if it could not.
    #[must_use]
    pub(crate) fn unready(&self) -> Option<String> {
        let is_listed = self.is_listed.load(Ordering::Relaxed);
        let unlisted =
            || "the API server has not listed the CiliumNodes yet: see the log".to_owned();
        self.fault().or_else(|| (!is_listed).then(unlisted))
    }

    /// The time for which the loop has been stalled, if it is.
    fn stalled(&self) -> Option<Duration> {
        let beat = self.beat.load(Ordering::Relaxed);
        let quiet = Duration::from_millis(self.age().saturating_sub(beat));
        (quiet >= STALLED).then_some(quiet)
    }

    fn age(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_come_round_has_stalled() {
        let health = Health::default();
        advance(Duration::from_secs(29)).await;
        assert_eq!(health.stalled(), None);
        health.beat();
        advance(STALLED).await;
        assert_eq!(health.stalled(), Some(STALLED));
        health.beat();
        assert_eq!(health.stalled(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_is_ready_once_it_knows_the_nodes_and_as_long_as_its_loop_comes_round() {
        let health = Health::default();
        assert_eq!(health.fault(), None);
        assert!(health.unready().unwrap().contains("CiliumNodes"));
        health.clone().list();
        assert_eq!(health.unready(), None);
        advance(STALLED).await;
        assert_eq!(health.unready(), health.fault());
        assert!(health.unready().unwrap().ends_with("for 30 s"));
    }
}
