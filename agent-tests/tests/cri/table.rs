//! Times as a table.

use std::time::Duration;

/// Times of one operation.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_unstable();
        Self(times)
    }

    fn percentile(&self, percent: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0
            .get(last * percent / 100)
            .copied()
            .unwrap_or_default()
    }

    /// A row: number, median, 99th percentile, maximum.
    pub(crate) fn row(&self, name: &str) -> String {
        format!(
            "  {name:<34} {:>5} {:>9} {:>9} {:>9}",
            self.0.len(),
            milliseconds(self.percentile(50)),
            milliseconds(self.percentile(99)),
            milliseconds(self.percentile(100)),
        )
    }

    /// Header of the rows.
    pub(crate) fn header() -> String {
        format!(
            "  {:<34} {:>5} {:>9} {:>9} {:>9}",
            "milliseconds", "n", "p50", "p99", "max"
        )
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}
