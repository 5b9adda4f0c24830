//! The plan.

use crate::intent::Intent;
use crate::kernel::{Observed, Step};
use crate::view::View;

/// The steps from the kernel as it is to the kernel as it should be, and how the two compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in the order in which they are carried out. None: the kernel is as it should be.
    pub steps: Vec<Step>,
    /// What there is and what is missing.
    pub view: View,
}

/// Compares what should be with what is.
#[must_use]
pub fn plan(_intent: &Intent, _observed: &Observed) -> Plan {
    Plan::default()
}
