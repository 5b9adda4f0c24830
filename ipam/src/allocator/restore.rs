//! The start: what was written down against what the kernel has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Allocator;
use crate::{AllocateError, Claim, Cooling, Lease, Owner, Settings, State, Time};

/// An endpoint that the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenEndpoint {
    /// Its owner.
    pub owner: Owner,
    /// Its addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// The result of restoring the saved state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The number of leases that are as they were.
    pub kept: usize,
    /// Number of these that wait for their claim: their owners' endpoints were not seen.
    pub unclaimed: usize,
    /// Leases of endpoints' addresses that had no record, or one of another owner.
    pub adopted: Vec<Lease>,
    /// Leases that have ended.
    pub dropped: Vec<Dropped>,
    /// Endpoints that have an address which another one has too.
    pub conflicts: Vec<Conflict>,
}

/// A lease that holds no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The lease.
    pub lease: Lease,
    /// Why.
    pub why: WhyDropped,
}

/// Why a lease holds no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyDropped {
    /// Its owner had claimed it, and no endpoint has the address.
    #[error("no endpoint has it")]
    NoEndpoint,
    /// An endpoint of another owner has the address.
    #[error("{0} has it")]
    OtherOwner(Owner),
    /// Its owner has an endpoint, and that does not have the address.
    #[error("its owner's endpoint does not have it")]
    NotOnEndpoint,
    /// It was not claimed in time.
    #[error("it was not claimed in time")]
    Expired,
}

/// Two endpoints have one address. The first one, by owner, has the lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{owner} and {other} both have {address}; the lease is {owner}'s")]
pub struct Conflict {
    /// The address.
    pub address: IpAddr,
    /// The owner of the lease.
    pub owner: Owner,
    /// The owner that has the address without a lease.
    pub other: Owner,
}

impl Allocator {
    /// An allocator with the state of an earlier one, as far as the kernel confirms it. It can only
    /// be created here, so no address is allocated before.
    ///
    /// `seen` are the endpoints in the kernel. They keep their addresses, and a lease without an
    /// endpoint has ended in the time without an agent. `None`: the state is not cross-checked.
    #[must_use]
    pub fn restore(
        settings: Settings,
        state: State,
        seen: Option<&[SeenEndpoint]>,
        now: Time,
    ) -> (Self, Restored) {
        let mut allocator = Self::empty(settings);
        allocator.claims.released = state.released;
        for cooling in state.cooling {
            allocator.rest.resume(cooling, now);
        }
        let mut restored = Restored::default();
        let Some(seen) = seen else {
            for lease in state.leases {
                restored.keep(&lease);
                allocator.leases.put(lease);
            }
            return (allocator, restored);
        };
        let holders = holders(seen, &mut restored.conflicts);
        let owners: BTreeSet<&Owner> = seen.iter().map(|endpoint| &endpoint.owner).collect();
        for mut lease in state.leases {
            let why = match holders.get(&lease.address) {
                Some(holder) if **holder == lease.owner => {
                    lease.claim = Claim::Claimed;
                    None
                }
                Some(holder) => Some(WhyDropped::OtherOwner((*holder).clone())),
                None => unseen(&lease, &owners, now),
            };
            let address = lease.address;
            match why {
                None => {
                    restored.keep(&lease);
                    allocator.leases.put(lease);
                }
                Some(why) => {
                    allocator.leases.put(lease);
                    let lease = allocator.cool_down(address, now);
                    let dropped = lease.map(|lease| Dropped { lease, why });
                    restored.dropped.extend(dropped);
                }
            }
        }
        for (address, owner) in holders {
            if !allocator.leases.contains(address) {
                let known = allocator.rest.take(address);
                let lease = adopted(address, owner, known, now);
                restored.adopted.push(lease.clone());
                allocator.leases.put(lease);
            }
        }
        (allocator, restored)
    }

    /// Records an owner's address that this allocator did not allocate, even if it could not have.
    /// The address's cooldown ends.
    ///
    /// # Errors
    ///
    /// If another owner has the address.
    pub fn adopt(
        &mut self,
        owner: &Owner,
        address: IpAddr,
        now: Time,
    ) -> Result<(), AllocateError> {
        match self.leases.get(address) {
            Some(lease) if lease.owner == *owner => return Ok(()),
            Some(lease) => {
                let owner = lease.owner.clone();
                return Err(AllocateError::InUse { address, owner });
            }
            None => {}
        }
        let known = self.rest.take(address);
        self.leases.put(adopted(address, owner, known, now));
        let block = self.block_of(address);
        if let Some((start, net)) = block.map(|block| (block.start(), block.cidr())) {
            // Whatever was to become of an empty block.
            self.claims.released.remove(&net);
            self.settle_one(start);
        }
        Ok(())
    }
}

impl Restored {
    fn keep(&mut self, lease: &Lease) {
        self.kept += 1;
        self.unclaimed += usize::from(lease.claim != Claim::Claimed);
    }
}

/// The owner of each address.
fn holders<'a>(
    seen: &'a [SeenEndpoint],
    conflicts: &mut Vec<Conflict>,
) -> BTreeMap<IpAddr, &'a Owner> {
    let mut all: Vec<(IpAddr, &Owner)> = seen
        .iter()
        .flat_map(|endpoint| endpoint.addresses.iter().map(|a| (*a, &endpoint.owner)))
        .collect();
    all.sort_unstable();
    let mut holders: BTreeMap<IpAddr, &Owner> = BTreeMap::new();
    for (address, owner) in all {
        match holders.get(&address) {
            Some(first) if *first != owner => conflicts.push(Conflict {
                address,
                owner: Owner::clone(first),
                other: owner.clone(),
            }),
            Some(_) => {}
            None => {
                holders.insert(address, owner);
            }
        }
    }
    holders
}

/// Why a lease whose address no endpoint has is dropped; `None` while its owner may still come.
fn unseen(lease: &Lease, owners: &BTreeSet<&Owner>, now: Time) -> Option<WhyDropped> {
    match lease.claim {
        _ if owners.contains(&lease.owner) => Some(WhyDropped::NotOnEndpoint),
        Claim::Claimed => Some(WhyDropped::NoEndpoint),
        Claim::Unclaimed { until } if until <= now => Some(WhyDropped::Expired),
        Claim::Unclaimed { .. } => None,
    }
}

/// The lease of an endpoint that has none. What is known of the address is from when it was given
/// last; the rest is learned with the block.
fn adopted(address: IpAddr, owner: &Owner, known: Option<Cooling>, now: Time) -> Lease {
    let (pool, block) = known.map_or((None, address.into()), |known| (known.pool, known.block));
    Lease {
        address,
        owner: owner.clone(),
        pool,
        block,
        since: now,
        claim: Claim::Claimed,
    }
}
