//! The two clocks of the operator.

use anyhow::{Context as _, Result};
use apiserver::lease;
use fleet::Moment;
use ipam::Time;
use jiff::Timestamp;

/// The present moment. The operator's own clock is that of its lease, so that the end of a term can be
/// compared with it.
///
/// # Errors
/// When the kernel has no such clock.
pub(super) fn moment() -> Result<Moment> {
    let since_start = lease::now().context("read the clock CLOCK_BOOTTIME")?;
    let millis = u64::try_from(since_start.as_millis()).unwrap_or(u64::MAX);
    Ok(Moment {
        now: Time::from_millis(millis),
        date: Timestamp::now(),
    })
}
