//! The demand.

use std::net::IpAddr;

use crate::{Family, Owner, Pod};

/// A request for one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The owner. It has at most one address of each family; a second request gives the same one.
    pub owner: Owner,
    /// The pod of the owner, which is a sandbox. A failed request is recorded by its pod, because
    /// the next attempt has another owner. `None`: only the owner is known.
    pub pod: Option<Pod>,
    /// The pool. `None`: the default pool, or that of the requested address.
    pub pool: Option<String>,
    /// Which address.
    pub want: Want,
}

/// The requested address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Any one of a family.
    Any(Family),
    /// This one.
    Address(IpAddr),
}

impl Want {
    /// The family of the requested address.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::Any(family) => family,
            Self::Address(address) => Family::of(address),
        }
    }
}
