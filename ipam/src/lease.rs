//! Leases, and addresses that cool down.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Family, Owner, Time};

/// An address with its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// Its owner.
    pub owner: Owner,
    /// The pool that it was given from. It stays so while the lease lasts, whatever becomes of the
    /// pool's blocks. `None` of an adopted address that was in no block yet.
    pub pool: Option<String>,
    /// The block that it was given from; of an adopted address that was in no block, the address
    /// itself.
    pub block: IpNet,
    /// When it was given.
    pub since: Time,
    /// The state of its claim.
    pub claim: Claim,
}

impl Lease {
    /// The address's family.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }
}

/// The claim of a lease: evidence that its owner lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// Allocated; the owner has not shown up yet. The requester may be dead.
    Unclaimed {
        /// When the address is taken back.
        until: Time,
    },
    /// The owner has it.
    Claimed,
}

/// An address that is kept back after its release, so that late packets for its last owner do not
/// reach the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cooling {
    /// The address.
    pub address: IpAddr,
    /// The pool that it was given from.
    pub pool: Option<String>,
    /// The block that it was given from.
    pub block: IpNet,
    /// Until when at least.
    pub until: Time,
    /// When it was released; `None` where an older version wrote it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Time>,
    /// The cooldown is over: the address is free, and its release alone is remembered. An older
    /// version passes over this field, so there the address cools down once more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}
