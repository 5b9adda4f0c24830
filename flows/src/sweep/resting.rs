//! Resting numbers of ENIs: they have no ENI, and are assigned again only once nothing carries
//! them.

use std::collections::BTreeMap;

use api::ids::EniNumber;

use crate::sweep::outcome::Sweep;
use crate::tracker::Tracker;

/// Some bits of a packet mark, and what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The bits, within `mask`.
    pub value: u32,
    /// The bits that count.
    pub mask: u32,
}

/// The numbers that rest, and the marks of packets that carry them.
pub type Resting = BTreeMap<EniNumber, Mark>;

impl Sweep {
    /// Records the resting numbers that no entry of conntrack has. A rule that restores marks sends
    /// the packets of a marked flow out of the ENI with the number. If conntrack cannot be read,
    /// numbers go on resting.
    pub(super) fn ask_marks(&mut self, resting: &Resting, tracker: &mut dyn Tracker) {
        for (number, mark) in resting {
            match tracker.has_mark(*mark) {
                Ok(false) => {
                    self.unmarked.insert(*number);
                }
                Ok(true) => {}
                Err(error) => {
                    self.error.get_or_insert(format!("{error:#}"));
                }
            }
        }
    }
}
