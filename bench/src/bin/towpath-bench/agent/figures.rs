//! Turns samples into figures.

use std::time::Duration;

use crate::options::Group;
use crate::report::{Row, Unit};

/// A figure of the agent.
pub(crate) fn row(name: impl Into<String>, value: f64, unit: Unit) -> Row {
    Row {
        group: Group::Agent,
        name: name.into(),
        value,
        unit,
        spread: None,
        target: None,
    }
}

/// Adds a target to a row.
pub(crate) fn against(target: f64, row: Row) -> Row {
    Row {
        target: Some(target),
        ..row
    }
}

/// Milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The median of some rounds, with their spread.
pub(crate) fn median_row(name: impl Into<String>, samples: &[f64], unit: Unit) -> Row {
    let spread = (quantile(samples, 0.75) - quantile(samples, 0.25)) / 2.0;
    Row {
        spread: (samples.len() > 1).then_some(spread),
        ..row(name, quantile(samples, 0.5), unit)
    }
}

/// The value that a share of the samples does not exceed (nearest rank); 0 without samples.
pub(crate) fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    // Sample counts are far below 2^52, and the share is within 0 and 1.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among some hundred samples"
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// A count of bytes in mebibytes.
#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of memory are far below 2^52"
)]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "the figures are exact")]

    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        let at = |share| quantile(&samples, share);
        assert_eq!([at(0.5), at(0.75), at(0.99), at(0.0)], [2.0, 3.0, 4.0, 1.0]);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn a_single_round_has_no_spread() {
        assert_eq!(median_row("x", &[3.0], Unit::Milliseconds).spread, None);
        let rounds = median_row("x", &[1.0, 2.0, 3.0, 4.0], Unit::Milliseconds);
        assert_eq!((rounds.value, rounds.spread), (2.0, Some(1.0)));
    }
}
