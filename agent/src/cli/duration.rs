//! Durations of the command line.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;

/// The longest wait that makes sense.
const MAX: Duration = Duration::from_hours(1);

/// A duration: a number of seconds, or numbers with units.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let with_units = || {
        let duration: SignedDuration = text.parse().ok()?;
        Duration::try_from(duration).ok()
    };
    let duration = seconds.or_else(with_units);
    duration
        .filter(|duration| !duration.is_zero() && *duration <= MAX)
        .ok_or_else(|| "allowed: more than 0 and up to 1h, such as 500ms, 10s, 2m or 30".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_or_are_seconds() {
        for (text, milliseconds) in [
            ("3", 3000),
            ("0.5", 500),
            ("500ms", 500),
            ("10s", 10_000),
            ("2m", 120_000),
            ("1m30s", 90_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(
                parse(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in [
            "", "0", "0s", "-1", "-3s", "2h", "soon", "nan", "inf", "1e300", "s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
