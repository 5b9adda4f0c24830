//! The number of an ENI.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The device index of an ENI's attachment; 0 is the primary.
///
/// The packet mark has to carry it plus one, so the highest number that can be used follows from
/// the mark's mask (`MarkLayout::max_eni`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EniNumber(pub u8);

impl EniNumber {
    /// The primary ENI.
    pub const PRIMARY: Self = Self(0);

    /// True for the primary ENI.
    #[must_use]
    pub fn is_primary(self) -> bool {
        self == Self::PRIMARY
    }
}

impl fmt::Display for EniNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
