//! Giving an address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Allocator;
use crate::block::{Block, Life};
use crate::{AllocateError, Claim, Family, Lease, Owner, Problem, Request, Time, Want};

impl Allocator {
    /// Gives an address: that of an earlier request of the same owner, else a new one of the
    /// fullest block. The lease expires unless it is claimed.
    ///
    /// A request that fails for want of addresses counts as demand until it succeeds, its owner
    /// releases, or its time is over.
    ///
    /// # Errors
    ///
    /// Says why there is no address; nothing is held then that was not before.
    pub fn allocate(&mut self, request: &Request, now: Time) -> Result<Lease, AllocateError> {
        if !self.waiting.is_empty() {
            return Err(AllocateError::Restoring {
                waiting: self.waiting().collect(),
            });
        }
        if let Some(lease) = self.again(request, now)? {
            return Ok(lease);
        }
        let family = request.want.family();
        if !self.settings.families.contains(&family) {
            let pool = self.pool_for(request).to_owned();
            return Err(AllocateError::NoFamily { pool, family });
        }
        let chosen = match request.want {
            Want::Any(family) => self.choose(request.pool.as_deref(), family),
            Want::Address(address) => self
                .check(address, request.pool.as_deref())
                .map(|()| address),
        };
        match chosen {
            Ok(address) => Ok(self.lease(address, &request.owner, now)),
            Err(error) => {
                self.note(&error, request, now);
                Err(error)
            }
        }
    }

    /// Gives all of several addresses or none, as a pod with both families needs it. What was
    /// given before one of them failed has not been told to anybody, so it is free again without a
    /// cooldown: a pod that is tried again and again for want of IPv4 does not use up IPv6.
    ///
    /// # Errors
    ///
    /// Those of the first request that failed; nothing is held then that was not before.
    pub fn allocate_all(
        &mut self,
        requests: &[Request],
        now: Time,
    ) -> Result<Vec<Lease>, AllocateError> {
        let mut leases = Vec::new();
        let mut new = Vec::new();
        for request in requests {
            let family = request.want.family();
            let had_one = self
                .leases_of(&request.owner)
                .any(|lease| lease.family() == family);
            match self.allocate(request, now) {
                Ok(lease) => {
                    new.extend((!had_one).then_some(lease.address));
                    leases.push(lease);
                }
                Err(error) => {
                    for address in new {
                        self.remove_lease(address);
                        self.freed(address);
                    }
                    return Err(error);
                }
            }
        }
        Ok(leases)
    }

    /// Whether a pool could give an address of a family now.
    ///
    /// # Errors
    ///
    /// Says why there is none, as [`Allocator::allocate`] would.
    pub fn probe(&self, pool: &str, family: Family) -> Result<(), AllocateError> {
        if !self.waiting.is_empty() {
            return Err(AllocateError::Restoring {
                waiting: self.waiting().collect(),
            });
        }
        self.choose(Some(pool), family).map(drop)
    }

    /// The pool that a request would be answered from.
    pub(crate) fn pool_for<'a>(&'a self, request: &'a Request) -> &'a str {
        let of_address = match request.want {
            Want::Any(_) => None,
            Want::Address(address) => self.block_of(address).and_then(|b| b.pool.as_deref()),
        };
        let default = of_address.unwrap_or(&self.settings.default_pool);
        request.pool.as_deref().unwrap_or(default)
    }

    /// What the owner has already of the family.
    fn again(&mut self, request: &Request, now: Time) -> Result<Option<Lease>, AllocateError> {
        let family = request.want.family();
        let of_family = |lease: &&Lease| lease.family() == family;
        let Some(lease) = self.leases_of(&request.owner).find(of_family).cloned() else {
            return Ok(None);
        };
        let is_other_pool = request.pool.is_some() && request.pool != lease.pool;
        let is_other = match request.want {
            Want::Any(_) => is_other_pool,
            Want::Address(address) => is_other_pool || address != lease.address,
        };
        if is_other {
            return Err(AllocateError::HasAnother {
                owner: lease.owner,
                has: lease.address,
                pool: lease.pool.unwrap_or_default(),
            });
        }
        let Some(block) = self.block_of(lease.address) else {
            return Err(AllocateError::Orphaned {
                owner: lease.owner,
                address: lease.address,
                block: lease.block,
            });
        };
        if lease.pool.is_none() {
            return Err(AllocateError::BlockDraining {
                address: lease.address,
                block: block.cidr(),
                life: block.life.clone(),
            });
        }
        if block.life == Life::Announced {
            return Err(AllocateError::NotReady {
                pool: lease.pool.unwrap_or_default(),
                family,
                waiting: vec![block.source.clone()],
            });
        }
        let until = now.after(self.settings.unclaimed);
        if let Some(lease) = self.leases.get_mut(&lease.address)
            && lease.claim != Claim::Claimed
        {
            lease.claim = Claim::Unclaimed { until };
        }
        Ok(self.leases.get(&lease.address).cloned())
    }

    /// The next address of a pool.
    fn choose(&self, pool: Option<&str>, family: Family) -> Result<IpAddr, AllocateError> {
        let pool = pool.unwrap_or(&self.settings.default_pool);
        let start = self.index.first(pool, family);
        let block = start.and_then(|start| self.blocks.get(&start));
        match block.and_then(|block| block.slots.next()) {
            Some(address) => Ok(address),
            None => Err(self.why_none(pool, family)),
        }
    }

    fn why_none(&self, pool: &str, family: Family) -> AllocateError {
        let of_pool = || self.blocks.values().filter(|b| b.is_of(pool, family));
        let waiting: BTreeSet<_> = of_pool()
            .filter(|block| block.waits_for_its_source())
            .map(|block| block.source.clone())
            .collect();
        let pool = pool.to_owned();
        let gives = self.announcement.pools.get(&pool);
        let is_given = gives.is_none_or(|families| families.contains(&family));
        let key = (pool, family);
        let is_stuck = self.announcement.not_masqueraded.contains(&key);
        let (pool, family) = key;
        if is_stuck {
            AllocateError::NotMasqueraded { pool, family }
        } else if !is_given {
            AllocateError::NoFamily { pool, family }
        } else if !waiting.is_empty() {
            AllocateError::NotReady {
                pool,
                family,
                waiting: waiting.into_iter().collect(),
            }
        } else if gives.is_none() && of_pool().next().is_none() {
            AllocateError::UnknownPool { pool, family }
        } else {
            AllocateError::Exhausted {
                counts: self.counts(&pool, family),
                pool,
                family,
            }
        }
    }

    fn why_in_no_block(&self, address: IpAddr) -> AllocateError {
        let mut problems = self.announcement.problems.iter();
        let pool = problems.find_map(|problem| match problem {
            Problem::NotMasqueraded { block, pool } if block.contains(&address) => Some(pool),
            _ => None,
        });
        match pool {
            Some(pool) => AllocateError::NotMasqueraded {
                pool: pool.clone(),
                family: Family::of(address),
            },
            None => AllocateError::NotInBlock { address },
        }
    }

    /// Whether an address can be given.
    fn check(&self, address: IpAddr, pool: Option<&str>) -> Result<(), AllocateError> {
        if let Some(lease) = self.leases.get(&address) {
            return Err(AllocateError::InUse {
                address,
                owner: lease.owner.clone(),
            });
        }
        if let Some(cooling) = self.cooling.get(&address) {
            return Err(AllocateError::CoolingDown {
                address,
                until: cooling.until,
            });
        }
        let Some(block) = self.block_of(address) else {
            return Err(self.why_in_no_block(address));
        };
        if let (Some(asked), Some(actual)) = (pool, &block.pool)
            && asked != actual
        {
            return Err(AllocateError::OtherPool {
                address,
                asked: asked.to_owned(),
                actual: actual.clone(),
            });
        }
        if let Some(why) = block.slots.barred(address) {
            return Err(AllocateError::Barred {
                address,
                block: block.cidr(),
                why,
            });
        }
        match &block.life {
            Life::Usable => Ok(()),
            Life::Announced => Err(AllocateError::NotReady {
                pool: block.pool.clone().unwrap_or_default(),
                family: block.family(),
                waiting: vec![block.source.clone()],
            }),
            life @ (Life::Draining(_) | Life::Gone) => Err(AllocateError::BlockDraining {
                address,
                block: block.cidr(),
                life: life.clone(),
            }),
        }
    }

    /// Puts a free address of a usable block into the owner's hands.
    fn lease(&mut self, address: IpAddr, owner: &Owner, now: Time) -> Lease {
        let block = self.block_of(address);
        let lease = Lease {
            address,
            owner: owner.clone(),
            pool: block.and_then(|block| block.pool.clone()),
            block: block.map_or(address.into(), Block::cidr),
            since: now,
            claim: Claim::Unclaimed {
                until: now.after(self.settings.unclaimed),
            },
        };
        if let Some(start) = block.map(Block::start) {
            self.change(start, |block| {
                block.slots.take(address);
                block.held += 1;
            });
        }
        self.pending.remove(owner, lease.family());
        self.put_lease(lease.clone());
        lease
    }

    /// Counts a request as demand, where more addresses would have helped it.
    fn note(&mut self, error: &AllocateError, request: &Request, now: Time) {
        let (AllocateError::UnknownPool { pool, family }
        | AllocateError::Exhausted { pool, family, .. }) = error
        else {
            return;
        };
        let until = now.after(self.settings.pending);
        self.pending
            .put(request.owner.clone(), *family, pool.clone(), until);
    }
}
