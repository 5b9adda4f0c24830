//! The state that outlives a restart.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Cooling, Lease};

/// The state that an [`Allocator`](crate::Allocator) needs after a restart and has from nowhere
/// else. It is read only when it holds together.
///
/// Fields that are not known are passed over, so that an older agent reads what a newer one wrote
/// while [`State::VERSION`] is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Document", into = "Document")]
pub struct State {
    /// Every lease, in the order of the addresses.
    pub leases: Vec<Lease>,
    /// Every address that cools down, in order.
    pub cooling: Vec<Cooling>,
    /// Released blocks, from which no address is allocated unless they are reclaimed. Blocks with
    /// an unconfirmed new claim are among them.
    pub released: BTreeSet<IpNet>,
}

impl State {
    /// Version of the form in which the state is written down.
    pub const VERSION: u32 = 1;

    fn check(&self) -> Result<(), StateError> {
        let mut held = BTreeSet::new();
        let leases = self.leases.iter().map(|lease| lease.address);
        for address in leases.chain(self.cooling.iter().map(|cooling| cooling.address)) {
            if !held.insert(address) {
                return Err(StateError::Twice(address));
            }
        }
        for lease in &self.leases {
            if !lease.block.contains(&lease.address) {
                return Err(StateError::NotInBlock(lease.address, lease.block));
            }
        }
        Ok(())
    }
}

/// A state that cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It is of another version.
    #[error("version {0} is not known; {known} is", known = State::VERSION)]
    Version(u32),
    /// An address stands twice.
    #[error("address {0} stands twice")]
    Twice(IpAddr),
    /// An address is not in the block that it is said to be of.
    #[error("address {0} is not in its block {1}")]
    NotInBlock(IpAddr, IpNet),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    version: u32,
    leases: Vec<Lease>,
    cooling: Vec<Cooling>,
    released: BTreeSet<IpNet>,
}

impl From<State> for Document {
    fn from(state: State) -> Self {
        Self {
            version: State::VERSION,
            leases: state.leases,
            cooling: state.cooling,
            released: state.released,
        }
    }
}

impl TryFrom<Document> for State {
    type Error = StateError;

    fn try_from(document: Document) -> Result<Self, StateError> {
        if document.version != Self::VERSION {
            return Err(StateError::Version(document.version));
        }
        let state = Self {
            leases: document.leases,
            cooling: document.cooling,
            released: document.released,
        };
        state.check()?;
        Ok(state)
    }
}
