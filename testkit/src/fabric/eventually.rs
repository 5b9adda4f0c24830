//! Waiting for a state by looking at it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// The time to wait between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks until `look` succeeds, and returns how long that took beside what it returned.
///
/// # Errors
/// When the deadline passes: the number of looks, the time of the last one, and what it said.
pub fn eventually<T>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T>,
) -> Result<(T, Duration)> {
    let start = Instant::now();
    let mut looks = 0_u32;
    loop {
        let began = start.elapsed();
        looks += 1;
        match look() {
            // The state was there when the look began at the latest.
            Ok(value) => return Ok((value, began)),
            Err(error) if start.elapsed() > deadline => {
                let last = start.elapsed().saturating_sub(began).as_millis();
                let looks = format!("look {looks} took {last} ms");
                return Err(error.context(format!("not within {deadline:?}, {looks}: {what}")));
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
        let said = "not within 0ns, look 1 took 0 ms: two: one";
        assert_eq!(format!("{error:#}"), said);
        let mut looks = 0;
        let ((), _) = eventually(Duration::from_secs(5), "three looks", || {
            looks += 1;
            check(looks == 3, || looks.to_string())
        })
        .unwrap();
    }
}
