//! The wait before the next request to the API server.

use std::error::Error;
use std::time::Duration;

use kube::runtime::watcher;

/// The wait after the first failure; each further consecutive one doubles it.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait of our own choice after a refusal, which lasts until a person changes something.
const LONGEST: Duration = Duration::from_mins(1);
/// The longest one while the server gives no answer, or says that it cannot. A server that is back
/// is needed at once: pods wait for their addresses.
const UNANSWERED: Duration = Duration::from_secs(10);
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
    /// respected. Clients that fail together do not return together: up to half of a wait of our
    /// own is left out by chance.
    pub fn failed(&mut self, error: &(dyn Error + 'static)) -> Duration {
        let own = self.longest(error).mul_f64(1.0 - fastrand::f64() / 2.0);
        own.max(requested(error).unwrap_or_default())
    }

    /// Records a failure, and returns the longest wait of our own choice.
    fn longest(&mut self, error: &(dyn Error + 'static)) -> Duration {
        let own = FIRST * 2u32.pow(self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        own.min(if is_refusal(error) {
            LONGEST
        } else {
            UNANSWERED
        })
    }
}

/// True if an error, or one of its sources, is a refusal by the server (RFC 9110 section 15.5).
fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    let of_client = |code: u16| (400..500).contains(&code);
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        return of_client(status.code);
    }
    if let Some(watcher::Error::WatchError(status)) = error.downcast_ref() {
        return of_client(status.code);
    }
    error.source().is_some_and(is_refusal)
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
    use serde_json::json;

    use super::*;

    fn status(code: u16, seconds: u32) -> kube::core::Status {
        let details = json!({"retryAfterSeconds": seconds});
        let status = json!({"code": code, "details": details});
        serde_json::from_value(status).unwrap()
    }

    fn refusal(code: u16, seconds: u32) -> kube::Error {
        kube::Error::Api(status(code, seconds).into())
    }

    fn longest_waits(error: &(dyn Error + 'static)) -> Vec<u64> {
        let mut retry = Retry::default();
        let waits = (0..8).map(|_| retry.longest(error).as_secs());
        waits.collect()
    }

    #[test]
    fn waits_after_refusals_grow_to_a_minute() {
        let grown = [1, 2, 4, 8, 16, 32, 60, 60];
        assert_eq!(longest_waits(&refusal(403, 40)), grown);
        let of_watch = watcher::Error::WatchError(status(410, 0).into());
        assert_eq!(longest_waits(&of_watch), grown);
        let read = Err::<(), _>(refusal(404, 0)).context("read it");
        assert_eq!(longest_waits(read.unwrap_err().as_ref()), grown);
    }

    #[test]
    fn a_server_that_cannot_answer_is_tried_every_ten_seconds() {
        let grown = [1, 2, 4, 8, 10, 10, 10, 10];
        assert_eq!(longest_waits(&refusal(503, 40)), grown);
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let none = watcher::Error::WatchStartFailed(kube::Error::Service(refused.into()));
        assert_eq!(longest_waits(&none), grown);
    }

    #[test]
    fn a_success_makes_the_wait_short_and_chance_makes_it_differ() {
        let mut retry = Retry::default();
        let waits: Vec<_> = (0..100).map(|_| retry.failed(&refusal(500, 0))).collect();
        let late = &waits[4..];
        assert!(late.iter().all(|wait| (5..=10).contains(&wait.as_secs())));
        assert!(late.iter().any(|wait| *wait != late[0]), "{late:?}");
        retry.succeeded();
        assert!(retry.failed(&refusal(500, 0)) <= FIRST);
    }

    #[test]
    fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
        let mut retry = Retry::default();
        assert_eq!(retry.failed(&refusal(429, 7)).as_secs(), 7);
        let slower = retry.failed(&refusal(429, 1));
        assert!(slower >= Duration::from_secs(1), "{slower:?}");
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
