//! What waiting tests share.

use std::time::Duration;

/// Asks for the long run.
const FULL: &str = "TOWPATH_FULL";

/// One value for an ordinary run, another for a full one.
pub(crate) fn by_length<T>(ordinary: T, full: T) -> T {
    if std::env::var_os(FULL).is_some() {
        full
    } else {
        ordinary
    }
}

/// The time that a runtime may ask again for what was refused: a kubelet does so for minutes.
pub(crate) const RETRY: Duration = Duration::from_secs(20);
