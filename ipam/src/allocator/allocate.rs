//! Giving an address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Allocator;
use crate::block::{Block, Life};
use crate::demand::Shortage;
use crate::{AllocateError, Claim, Family, Lease, Owner, Problem, Request, Time, Want};

impl Allocator {
    /// Gives an address: that of an earlier request of the same owner, else a new one of the
    /// fullest block. The lease expires unless it is claimed.
    ///
    /// # Errors
    ///
    /// Those of [`Allocator::allocate_all`].
    pub fn allocate(&mut self, request: &Request, now: Time) -> Result<Lease, AllocateError> {
        let requests = std::slice::from_ref(request);
        let given = self.attempt(requests, now);
        self.note(&given, requests, now);
        given.map(|mut leases| leases.remove(0))
    }

    /// Allocates several addresses, all or none, as a pod with both families needs it.
    ///
    /// If a request fails, the addresses of those before it were not published, so they are free
    /// again without a cooldown. A pod that is retried for lack of IPv4 thus does not use up IPv6.
    ///
    /// If one request fails for lack of addresses, all of them count as demand. That ends when they
    /// succeed, their pod is removed, or their time is over.
    ///
    /// # Errors
    ///
    /// That of the first failed request, or of one that can never succeed. Then no new address is
    /// held.
    pub fn allocate_all(
        &mut self,
        requests: &[Request],
        now: Time,
    ) -> Result<Vec<Lease>, AllocateError> {
        let given = self.attempt(requests, now);
        self.note(&given, requests, now);
        given
    }

    fn attempt(&mut self, requests: &[Request], now: Time) -> Result<Vec<Lease>, AllocateError> {
        if !self.waiting.is_empty() {
            return Err(AllocateError::Restoring {
                waiting: self.waiting().collect(),
            });
        }
        let mut leases = Vec::new();
        let mut new = Vec::new();
        for request in requests {
            let had_one = self.has_one(request);
            match self.give(request, now) {
                Ok(lease) => {
                    new.extend((!had_one).then_some(lease.address));
                    leases.push(lease);
                }
                Err(error) => {
                    for address in new {
                        self.leases.remove(address);
                        self.freed(address, None);
                    }
                    let mut hopeless = requests.iter().filter_map(|r| self.hopeless(r));
                    return Err(hopeless.next().unwrap_or(error));
                }
            }
        }
        Ok(leases)
    }

    /// Gives what one request is for.
    fn give(&mut self, request: &Request, now: Time) -> Result<Lease, AllocateError> {
        if let Some(lease) = self.again(request, now)? {
            return Ok(lease);
        }
        let address = self.choose(request)?;
        Ok(self.lease(address, &request.owner, now))
    }

    /// The address that a request of an owner without any is answered with.
    fn choose(&self, request: &Request) -> Result<IpAddr, AllocateError> {
        let family = request.want.family();
        if !self.settings.families.contains(&family) {
            let pool = self.pool_for(request).to_owned();
            return Err(AllocateError::NoFamily { pool, family });
        }
        let pool = request.pool.as_deref();
        match request.want {
            Want::Any(family) => self.next_of(pool, family),
            Want::Address(address) => self.check(address, pool).map(|()| address),
        }
    }

    /// The reason that a request of a pod without addresses can never succeed, if there is one.
    /// Nothing is requested then: a pod gets all of its addresses or none.
    fn hopeless(&self, request: &Request) -> Option<AllocateError> {
        let error = self.choose(request).err()?;
        let is_open = error.is_temporary() || self.has_one(request);
        (!is_open).then_some(error)
    }

    /// True if the owner has an address of the family.
    fn has_one(&self, request: &Request) -> bool {
        let family = request.want.family();
        let mut leases = self.leases.of(&request.owner);
        leases.any(|lease| lease.family() == family)
    }

    /// True if a pool could give an address of a family now.
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
        self.next_of(Some(pool), family).map(drop)
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

    /// The owner's present lease of the family.
    fn again(&mut self, request: &Request, now: Time) -> Result<Option<Lease>, AllocateError> {
        let family = request.want.family();
        let of_family = |lease: &&Lease| lease.family() == family;
        let Some(lease) = self.leases.of(&request.owner).find(of_family).cloned() else {
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
        if let Some(lease) = self.leases.get_mut(lease.address)
            && lease.claim != Claim::Claimed
        {
            lease.claim = Claim::Unclaimed { until };
        }
        Ok(self.leases.get(lease.address).cloned())
    }

    /// The next address of a pool.
    fn next_of(&self, pool: Option<&str>, family: Family) -> Result<IpAddr, AllocateError> {
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

    /// Checks that an address can be given.
    fn check(&self, address: IpAddr, pool: Option<&str>) -> Result<(), AllocateError> {
        if let Some(lease) = self.leases.get(address) {
            return Err(AllocateError::InUse {
                address,
                owner: lease.owner.clone(),
            });
        }
        if let Some(cooling) = self.rest.cooling.get(&address) {
            return Err(AllocateError::CoolingDown {
                address,
                until: cooling.until,
            });
        }
        let Some(block) = self.block_of(address) else {
            return Err(self.why_in_no_block(address));
        };
        if let (Some(requested), Some(actual)) = (pool, &block.pool)
            && requested != actual
        {
            return Err(AllocateError::OtherPool {
                address,
                requested: requested.to_owned(),
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
        self.leases.put(lease.clone());
        lease
    }

    /// Counts requests as demand where more addresses would have helped, and no more once that is
    /// over: they succeeded, or they never can.
    fn note(&mut self, given: &Result<Vec<Lease>, AllocateError>, requests: &[Request], now: Time) {
        match given {
            Err(
                AllocateError::UnknownPool { .. }
                | AllocateError::Exhausted { .. }
                | AllocateError::NotReady { .. },
            ) => {
                let until = now.after(self.settings.waiting);
                for request in requests {
                    let is_any = matches!(request.want, Want::Any(_));
                    if is_any && !self.has_one(request) {
                        let shortage = Shortage {
                            family: request.want.family(),
                            pool: self.pool_for(request).to_owned(),
                            until,
                        };
                        let pod = request.pod.as_ref();
                        self.waiters.put(&request.owner, pod, shortage);
                    }
                }
            }
            Err(error) if error.is_temporary() => {}
            Ok(_) | Err(_) => {
                for request in requests {
                    self.waiters.remove(request);
                }
            }
        }
    }
}
