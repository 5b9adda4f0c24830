//! Claims, releases, and what time does to leases.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Allocator;
use crate::block::Block;
use crate::demand::Shortage;
use crate::{Cooling, Lease, NothingHeld, Owner, Pod, Time};

/// The effects of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advanced {
    /// Expired unclaimed leases, whose addresses cool down now.
    pub expired: Vec<Lease>,
    /// Addresses that can be given again.
    pub cooled: Vec<IpAddr>,
    /// The number of addresses that are as good as any from now on, because their release is long
    /// ago.
    pub rested: usize,
    /// The number of failed requests that no longer count as demand.
    pub forgotten: usize,
}

impl Allocator {
    /// The owner lives: its leases expire no more.
    ///
    /// # Errors
    ///
    /// When the owner has none, because they expired.
    pub fn claim(&mut self, owner: &Owner) -> Result<Vec<Lease>, NothingHeld> {
        self.leases.claim(owner)
    }

    /// Releases the addresses of a deleted owner, which cool down. Without addresses nothing
    /// happens. Its pod still waits for addresses: a runtime ends each sandbox that got none.
    pub fn release(&mut self, owner: &Owner, now: Time) -> Vec<Lease> {
        let addresses = self.leases.addresses(owner);
        let leases = addresses.into_iter();
        leases
            .filter_map(|address| self.cool_down(address, now))
            .collect()
    }

    /// Frees an owner's addresses at once, which were never used because their endpoint could not
    /// be created.
    pub fn take_back(&mut self, owner: &Owner) -> Vec<Lease> {
        let addresses = self.leases.addresses(owner);
        let mut leases = Vec::new();
        for address in addresses {
            leases.extend(self.leases.remove(address));
            self.freed(address, None);
        }
        leases
    }

    /// Notes that an owner did not use its leases and that its pod tries again: until then it waits
    /// for as much.
    pub fn wait(&mut self, owner: &Owner, pod: Option<&Pod>, leases: &[Lease], now: Time) {
        let until = now.after(self.settings.waiting);
        for lease in leases {
            if let Some(pool) = &lease.pool {
                let shortage = Shortage {
                    family: lease.family(),
                    pool: pool.clone(),
                    until,
                };
                self.waiters.put(owner, pod, shortage);
            }
        }
    }

    /// A pod is no more, so that nothing tries again for it. Answers whether it waited.
    pub fn forget(&mut self, pod: &Pod) -> bool {
        self.waiters.forget(pod)
    }

    /// Releases what owners have that are not among those who live, for a garbage collection.
    /// Leases that were given from `asked_at` on, when the list of the living was made, are left
    /// alone: it cannot know of them.
    pub fn release_others(
        &mut self,
        living: &BTreeSet<Owner>,
        asked_at: Time,
        now: Time,
    ) -> Vec<Lease> {
        let leases = self.leases.iter();
        let dead: Vec<IpAddr> = leases
            .filter(|lease| !living.contains(&lease.owner) && lease.since < asked_at)
            .map(|lease| lease.address)
            .collect();
        dead.into_iter()
            .filter_map(|address| self.cool_down(address, now))
            .collect()
    }

    /// Advances the time: ends expired unclaimed leases, removes old requests, and frees addresses
    /// after their cooldown.
    ///
    /// An address is freed only once `is_quiet` is true, which means that no state of its last
    /// owner is left, such as flows. Otherwise it is checked again next time.
    pub fn advance(&mut self, now: Time, is_quiet: impl FnMut(IpAddr) -> bool) -> Advanced {
        let settings = &self.settings;
        let longest = now.after(settings.cooldown);
        let forgotten = self.waiters.expire(now, now.after(settings.waiting));
        let latest_claim = now.after(settings.unclaimed);

        let cooled = self.rest.cooled(now, longest, is_quiet);
        for address in &cooled {
            if let Some(cooling) = self.rest.end(*address, now) {
                self.freed(*address, cooling.released);
                self.rest.fresh.insert(*address, cooling);
            }
        }
        let rested = self.ripen(now);
        let overdue = self.leases.overdue(now, latest_claim).into_iter();
        Advanced {
            expired: overdue
                .filter_map(|address| self.cool_down(address, now))
                .collect(),
            cooled,
            rested,
            forgotten,
        }
    }

    /// Ends the cooldown of addresses that is over; returns their number.
    fn ripen(&mut self, now: Time) -> usize {
        let ripe = self.rest.take_ripe(now);
        for (address, released) in &ripe {
            if let Some(start) = self.block_of(*address).map(Block::start) {
                self.change(start, |block| block.slots.ripen(*released));
            }
        }
        ripe.len()
    }

    /// Takes an address from its owner. It is still not free: its block does not notice.
    pub(super) fn cool_down(&mut self, address: IpAddr, now: Time) -> Option<Lease> {
        let lease = self.leases.remove(address)?;
        let cooling = Cooling {
            address,
            pool: lease.pool.clone(),
            block: lease.block,
            until: now.after(self.settings.cooldown),
            released: Some(now),
            over: false,
        };
        self.rest.begin(cooling);
        Some(lease)
    }
}
