//! Durations as Go writes them (`time.ParseDuration`), which is what ip-masq-agent files have.

use std::time::Duration;

/// Units and how many nanoseconds each has. Longer names first: `m` begins `ms`.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3), // U+00B5
    ("μs", 1e3), // U+03BC
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 6e10),
    ("h", 3.6e12),
];

/// Reads a duration (`60s`, `1h30m`, `1.5s`, `0`). Negative ones are none for us.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanoseconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(end);
        let value: f64 = number.parse().ok()?;
        let (name, unit) = UNITS.iter().find(|(name, _)| behind.starts_with(name))?;
        nanoseconds += value * unit;
        rest = behind.strip_prefix(name)?;
    }
    // Go's durations are 63 bits of nanoseconds.
    Duration::try_from_secs_f64(nanoseconds / 1e9)
        .ok()
        .filter(|duration| i64::try_from(duration.as_nanos()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, milliseconds) in [
            ("0", 0),
            ("60s", 60_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("500ms", 500),
            ("+1m0.5s", 60_500),
            (".5s", 500),
        ] {
            let expected = Duration::from_millis(milliseconds);
            assert_eq!(parse(text), Some(expected), "{text}");
        }
        for text in [
            "", "60", "s", "1d", "-5s", "1h x", "1..5s", ".s", "9999999h", "1 s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
