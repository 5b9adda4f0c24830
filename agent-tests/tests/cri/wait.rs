//! Helpers of the tests that wait.

use std::time::Duration;

/// Selects the long run.
const FULL: &str = "TOWPATH_FULL";

/// One value for an ordinary run, another for a full one.
pub(crate) fn by_length<T>(ordinary: T, full: T) -> T {
    if std::env::var_os(FULL).is_some() {
        full
    } else {
        ordinary
    }
}

/// The time that a runtime may repeat a refused request: a kubelet does so for minutes.
pub(crate) const RETRY: Duration = Duration::from_secs(20);
