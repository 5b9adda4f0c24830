//! The wait before the next request to the API server.

use std::error::Error;
use std::time::Duration;

/// The wait after the first failure; each further consecutive one doubles it.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait of our own choice.
const LONGEST: Duration = Duration::from_mins(1);
/// Maximum requested wait that is respected. The API server requests seconds, and a mistaken number
/// must not keep the node from its documents.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// The tries of something that has to work in the end.
#[derive(Debug, Default)]
pub struct Retry {
    failures: u32,
}

impl Retry {
    /// It has worked.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Records a failure, and returns the wait before the next attempt. A busy server's own wait is
    /// respected.
    pub fn failed(&mut self, error: &(dyn Error + 'static)) -> Duration {
        let own = FIRST * 2u32.pow(self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        own.min(LONGEST).max(requested(error).unwrap_or_default())
    }
}

/// The wait that a busy server requests, if an error or one of its sources has it.
#[must_use]
pub fn requested(error: &(dyn Error + 'static)) -> Option<Duration> {
    if let Some(kube::Error::Api(status)) = error.downcast_ref::<kube::Error>() {
        let details = status.details.as_ref().filter(|_| status.code == 429)?;
        let seconds = Duration::from_secs(details.retry_after_seconds.into());
        return Some(seconds.min(MAX_RETRY_AFTER));
    }
    requested(error.source()?)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use kube::runtime::watcher;
    use serde_json::json;

    use super::*;

    fn refusal(code: u16, seconds: u32) -> kube::Error {
        let details = json!({"retryAfterSeconds": seconds});
        let status = json!({"code": code, "details": details});
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn waits_grow_to_a_minute_and_begin_anew_behind_a_success() {
        let mut retry = Retry::default();
        let error = refusal(500, 40);
        let waits: Vec<_> = (0..8).map(|_| retry.failed(&error).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        retry.succeeded();
        assert_eq!(retry.failed(&error).as_secs(), 1);
    }

    #[test]
    fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
        let mut retry = Retry::default();
        assert_eq!(retry.failed(&refusal(429, 7)).as_secs(), 7);
        assert_eq!(
            retry.failed(&refusal(429, 1)).as_secs(),
            2,
            "our own pace is slower"
        );
        assert_eq!(retry.failed(&refusal(429, u32::MAX)), MAX_RETRY_AFTER);
    }

    #[test]
    fn what_a_server_asks_for_is_found_behind_other_errors() {
        let seven = Some(Duration::from_secs(7));
        let of_watch = watcher::Error::InitialListFailed(refusal(429, 7));
        assert_eq!(requested(&of_watch), seven);
        let read = Err::<(), _>(refusal(429, 7)).context("read it");
        assert_eq!(requested(read.unwrap_err().as_ref()), seven);
        assert_eq!(requested(&refusal(503, 7)), None);
    }
}
