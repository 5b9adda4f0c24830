//! Durations of requests about pods' attachments, for metrics.

use std::future::Future;
use std::time::Instant;

use api::ApiError;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// Upper bounds of the buckets, in seconds: from an add of one pod to that of one which waits for an
/// address, up to the time after which the caller gives up.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 20.0,
];

/// Names and values of a histogram's labels.
type Labels = [(&'static str, &'static str); 2];

/// A request that changes an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A pod is attached.
    Add,
    /// Its attachment is removed.
    Delete,
}

impl Change {
    const ALL: [Self; 2] = [Self::Add, Self::Delete];

    fn labels(self, is_ok: bool) -> Labels {
        let request = match self {
            Self::Add => "add",
            Self::Delete => "delete",
        };
        let result = if is_ok { "ok" } else { "error" };
        [("request", request), ("result", result)]
    }
}

/// Histograms of these requests, by kind and result.
#[derive(Clone, Debug)]
pub(crate) struct Durations(Family<Labels, Histogram>);

impl Default for Durations {
    fn default() -> Self {
        let new: fn() -> Histogram = || Histogram::new(BUCKETS);
        let all = Family::new_with_constructor(new);
        // A rate needs a value from before the first request.
        for change in Change::ALL {
            for is_ok in [true, false] {
                drop(all.get_or_create(&change.labels(is_ok)));
            }
        }
        Self(all)
    }
}

impl Durations {
    /// Waits for the answer to a request, and counts the time.
    pub(super) async fn time<T>(
        &self,
        change: Change,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let begun = Instant::now();
        let answer = answer.await;
        let labels = change.labels(answer.is_ok());
        let took = begun.elapsed().as_secs_f64();
        self.0.get_or_create(&labels).observe(took);
        answer
    }

    /// The histograms.
    pub(super) fn histograms(&self) -> &Family<Labels, Histogram> {
        &self.0
    }
}
