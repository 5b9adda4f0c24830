//! Leases by address, by owner, and those that can expire.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::{Claim, Lease, NothingHeld, Owner, Time};

/// The leases of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    by_address: BTreeMap<IpAddr, Lease>,
    by_owner: BTreeMap<Owner, BTreeSet<IpAddr>>,
    /// The unclaimed leases, which alone can expire.
    unclaimed: BTreeSet<IpAddr>,
}

impl Leases {
    pub(super) fn put(&mut self, lease: Lease) {
        let of_owner = self.by_owner.entry(lease.owner.clone()).or_default();
        of_owner.insert(lease.address);
        if lease.claim == Claim::Claimed {
            self.unclaimed.remove(&lease.address);
        } else {
            self.unclaimed.insert(lease.address);
        }
        self.by_address.insert(lease.address, lease);
    }

    pub(super) fn remove(&mut self, address: IpAddr) -> Option<Lease> {
        let lease = self.by_address.remove(&address)?;
        self.unclaimed.remove(&address);
        if let Some(of_owner) = self.by_owner.get_mut(&lease.owner) {
            of_owner.remove(&address);
            if of_owner.is_empty() {
                self.by_owner.remove(&lease.owner);
            }
        }
        Some(lease)
    }

    /// Claims the leases of an owner, so that they expire no more.
    pub(super) fn claim(&mut self, owner: &Owner) -> Result<Vec<Lease>, NothingHeld> {
        let addresses = self.by_owner.get(owner).ok_or_else(|| NothingHeld {
            owner: owner.clone(),
        })?;
        let mut claimed = Vec::new();
        for address in addresses {
            if let Some(lease) = self.by_address.get_mut(address) {
                lease.claim = Claim::Claimed;
                self.unclaimed.remove(address);
                claimed.push(lease.clone());
            }
        }
        Ok(claimed)
    }

    /// The addresses of the unclaimed leases that are over. None of the others lasts longer than
    /// `latest`.
    pub(super) fn overdue(&mut self, now: Time, latest: Time) -> Vec<IpAddr> {
        let mut overdue = Vec::new();
        for address in &self.unclaimed {
            if let Some(lease) = self.by_address.get_mut(address)
                && let Claim::Unclaimed { until } = &mut lease.claim
            {
                *until = latest.min(*until);
                if *until <= now {
                    overdue.push(*address);
                }
            }
        }
        overdue
    }

    pub(super) fn get(&self, address: IpAddr) -> Option<&Lease> {
        self.by_address.get(&address)
    }

    /// A lease whose owner, address and claim stay as they are known here: only an unclaimed one
    /// may last longer, and a pool and a block may be learned.
    pub(super) fn get_mut(&mut self, address: IpAddr) -> Option<&mut Lease> {
        self.by_address.get_mut(&address)
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// Every lease, in the order of the addresses.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.by_address.values()
    }

    /// The leases on addresses of a range.
    pub(super) fn within(&self, range: RangeInclusive<IpAddr>) -> impl Iterator<Item = &Lease> {
        self.by_address.range(range).map(|(_, lease)| lease)
    }

    /// As [`within`](Self::within), to learn pools and blocks.
    pub(super) fn within_mut(
        &mut self,
        range: RangeInclusive<IpAddr>,
    ) -> impl Iterator<Item = &mut Lease> {
        self.by_address.range_mut(range).map(|(_, lease)| lease)
    }

    /// The addresses of an owner.
    pub(super) fn addresses(&self, owner: &Owner) -> BTreeSet<IpAddr> {
        self.by_owner.get(owner).cloned().unwrap_or_default()
    }

    /// The leases of an owner.
    pub(super) fn of<'a>(&'a self, owner: &Owner) -> impl Iterator<Item = &'a Lease> {
        let addresses = self.by_owner.get(owner).into_iter().flatten();
        addresses.filter_map(|address| self.by_address.get(address))
    }
}
