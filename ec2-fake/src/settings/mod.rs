//! Behaviour of a cloud: delays, lag, budgets.

pub(super) mod limits;
pub(super) mod throttle;

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde::Deserialize;

use self::throttle::Rate;

/// A span of milliseconds from which delays are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "(u64, u64)")]
pub struct Span {
    least: u64,
    most: u64,
}

impl From<(u64, u64)> for Span {
    fn from((least, most): (u64, u64)) -> Self {
        Self::new(least, most)
    }
}

impl Span {
    /// A span; swapped bounds are put right.
    #[must_use]
    pub fn new(least: u64, most: u64) -> Self {
        Self {
            least: least.min(most),
            most: least.max(most),
        }
    }

    /// Draws a delay.
    pub(crate) fn draw(self, random: &mut fastrand::Rng) -> SignedDuration {
        millis(random.u64(self.least..=self.most))
    }

    /// The longest delay.
    pub(crate) fn longest(self) -> SignedDuration {
        millis(self.most)
    }
}

fn millis(value: u64) -> SignedDuration {
    SignedDuration::from_millis(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Settings of a cloud.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The ARNs' partition.
    pub partition: String,
    /// The region.
    pub region: String,
    /// The account.
    pub account: String,
    /// The seed of all that is drawn.
    pub seed: u64,
    /// From start to running.
    pub pending: Span,
    /// From termination to terminated.
    pub shutdown: Span,
    /// From `AttachNetworkInterface` to the device.
    pub attach: Span,
    /// From the device to the state `attached`.
    pub attached: Span,
    /// From `DetachNetworkInterface`, which removes the device, to `available`.
    pub detach: Span,
    /// The age of what reads by id see.
    pub lag_by_id: Span,
    /// The age of what filtered listings see.
    pub lag_listing: Span,
    /// The time for which an interface that was created is `pending`, and mutations do not know it.
    pub unknown: Span,
    /// Interfaces of the region.
    pub interface_quota: usize,
    /// Set when calls have budgets.
    pub throttle: bool,
    /// Budgets that differ from the usual ones, by action.
    pub rates: BTreeMap<String, Rate>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            partition: "aws".to_owned(),
            region: "eu-central-1".to_owned(),
            account: "123456789012".to_owned(),
            seed: 0,
            pending: Span::new(2_000, 2_000),
            shutdown: Span::new(3_000, 3_000),
            attach: Span::new(500, 3_000),
            attached: Span::new(0, 500),
            detach: Span::new(1_000, 5_000),
            lag_by_id: Span::new(0, 2_000),
            lag_listing: Span::new(0, 30_000),
            unknown: Span::new(0, 20_000),
            interface_quota: 5_000,
            throttle: true,
            rates: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// A cloud without delays, lag and budgets.
    #[must_use]
    pub fn immediate() -> Self {
        Self {
            pending: Span::default(),
            shutdown: Span::default(),
            attach: Span::default(),
            attached: Span::default(),
            detach: Span::default(),
            lag_by_id: Span::default(),
            lag_listing: Span::default(),
            unknown: Span::default(),
            throttle: false,
            ..Self::default()
        }
    }
}
