//! Statistics of rounds. Pure.

/// A median and how far the rounds lie from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// Half the distance between the quartiles.
    pub spread: f64,
}

/// The value below which a share of the values lies, between two of them by proportion.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = u32::try_from(sorted.len().checked_sub(1)?).ok()?;
    let mut below = 0_u32;
    let position = share * f64::from(last);
    while f64::from(below) + 1.0 <= position {
        below += 1;
    }
    let at = |index: u32| sorted.get(usize::try_from(index).ok()?).copied();
    let (low, high) = (at(below)?, at(below + 1).or_else(|| at(below))?);
    Some(low + (high - low) * (position - f64::from(below)))
}

/// The median and the spread; `None` of no values.
#[must_use]
pub fn summary(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(Summary {
        median: quantile(&sorted, 0.5)?,
        spread: (quantile(&sorted, 0.75)? - quantile(&sorted, 0.25)?) / 2.0,
    })
}

/// The ratios of two lanes, round by round: both have seen the same load of the machine.
#[must_use]
pub fn paired(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(a, b)| a / b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_median_lies_in_the_middle() {
        let of = |values: &[f64]| summary(values).unwrap();
        assert!(near(of(&[3.0, 1.0, 2.0]).median, 2.0));
        assert!(near(of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5));
        assert!(near(of(&[7.0]).median, 7.0));
        assert!(near(of(&[7.0]).spread, 0.0));
        assert_eq!(summary(&[]), None);
    }

    #[test]
    fn the_spread_is_half_of_what_the_middle_half_covers() {
        let summary = summary(&[1.0, 2.0, 3.0, 4.0, 100.0]).unwrap();
        assert!(near(summary.spread, 1.0), "{summary:?}");
    }

    /// The median of ratios is not the ratio of medians where the machine was slow in some rounds.
    #[test]
    fn ratios_are_of_one_round() {
        let (over, under) = ([2.0, 20.0, 3.0], [1.0, 10.0, 3.0]);
        let ratios = paired(&over, &under);
        assert!(near(summary(&ratios).unwrap().median, 2.0));
    }
}
