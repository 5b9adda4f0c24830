//! Health: the operator's main loop comes round.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A loop that has not come round for so long has stalled.
const STALLED: Duration = Duration::from_secs(30);

/// The health of the main loop.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    since: Instant,
    beat: Arc<AtomicU64>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            beat: Arc::default(),
        }
    }
}

impl Health {
    /// The loop came round.
    pub(super) fn beat(&self) {
        self.beat.store(self.age(), Ordering::Relaxed);
    }

    /// The time for which the loop has been stalled, if it is.
    #[must_use]
    pub(crate) fn stalled(&self) -> Option<Duration> {
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
}
