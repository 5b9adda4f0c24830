//! Waiting for a state by looking at it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// The time to wait between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks until `look` succeeds, and returns how long that took beside what it returned.
///
/// # Errors
/// When the deadline passes: what the last look said.
pub fn eventually<T>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T>,
) -> Result<(T, Duration)> {
    let start = Instant::now();
    loop {
        let began = start.elapsed();
        match look() {
            // The state was there when the look began at the latest.
            Ok(value) => return Ok((value, began)),
            Err(error) if start.elapsed() > deadline => {
                return Err(error.context(format!("not within {deadline:?}: {what}")));
            }
            Err(_not_yet) => thread::sleep(PAUSE),
        }
    }
}

/// An error unless the condition holds: for looks.
///
/// # Errors
/// When the condition does not hold, with the text.
pub fn check(condition: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if condition {
        Ok(())
    } else {
        Err(anyhow!(otherwise()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_what_the_last_look_said() {
        let error =
            eventually(Duration::ZERO, "two", || check(false, || "one".to_owned())).unwrap_err();
        assert_eq!(format!("{error:#}"), "not within 0ns: two: one");
        let mut looks = 0;
        let ((), _) = eventually(Duration::from_secs(5), "three looks", || {
            looks += 1;
            check(looks == 3, || looks.to_string())
        })
        .unwrap();
    }
}
