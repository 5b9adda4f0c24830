//! Allocation of the agent's own addresses, as a separate kind of resource. Its blocks are the
//! addresses that the agent got from the allocator of pods' addresses or from a delegated plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::Owner;
use ipam::{
    AgentAddresses, AgentPools, AllocateError, Allocator, Claim, Family, Lease, Manager, Request,
    State, Time, Want,
};
use ipnet::IpNet;

/// The agent's own addresses, by owner.
#[derive(Debug)]
pub(crate) struct OwnPools {
    manager: Manager<AgentAddresses>,
    document: AgentPools,
}

impl OwnPools {
    /// A manager that draws from a pool. It allocates nothing before [`OwnPools::restore`].
    pub(crate) fn unread(pool: &str) -> Self {
        Self {
            manager: manager(pool, Vec::new()),
            document: AgentPools::default(),
        }
    }

    /// Restores the leases of an earlier agent's own addresses.
    pub(crate) fn restore(&mut self, held: Vec<Lease>) {
        let pool = self.manager.allocator().settings().default_pool.clone();
        let own = |lease: Lease| Lease {
            pool: lease.pool.or_else(|| Some(pool.clone())),
            block: IpNet::from(lease.address),
            claim: Claim::Claimed,
            ..lease
        };
        let held: Vec<Lease> = held.into_iter().map(own).collect();
        self.document.given = held.iter().filter_map(given).collect();
        self.manager = manager(&pool, held);
        self.manager.observe(self.document.clone());
    }

    /// The addresses that owners use; `None` before those of an earlier agent are known.
    pub(crate) fn in_use(&self) -> Option<BTreeSet<IpAddr>> {
        self.manager.wanted()?;
        let leases = self.manager.allocator().leases();
        let leases = leases.filter(|lease| lease.claim == Claim::Claimed);
        Some(leases.map(|lease| lease.address).collect())
    }

    /// Allocates an address of each family to an owner, from the addresses that the agent got.
    pub(crate) fn allocate(
        &mut self,
        owner: &Owner,
        families: &BTreeSet<Family>,
        now: Time,
    ) -> Result<BTreeSet<IpAddr>, AllocateError> {
        let wants = families.iter().copied().map(Want::Any);
        self.request(owner, wants, now)
    }

    /// The pool of each family whose demand exceeds the addresses that the agent got.
    pub(crate) fn lacking(&mut self) -> BTreeMap<Family, String> {
        self.manager.publish(&mut self.document);
        let given = |pool: &str, family| {
            let all = self.document.given.iter();
            let of_both =
                |(address, of): &(&IpAddr, &String)| *of == pool && Family::of(**address) == family;
            u64::try_from(all.filter(of_both).count()).unwrap_or(u64::MAX)
        };
        let requested = self.document.requested.iter();
        let each = requested.flat_map(|(pool, families)| {
            let families = families.iter();
            families.map(move |(family, count)| (pool, *family, *count))
        });
        each.filter(|(pool, family, count)| given(pool, *family) < *count)
            .map(|(pool, family, _)| (family, pool.clone()))
            .collect()
    }

    /// Adds an address of a pool to those that can be allocated.
    pub(crate) fn give(&mut self, address: IpAddr, pool: String) {
        self.document.given.insert(address, pool);
        self.manager.observe(self.document.clone());
    }

    /// Records exactly these leases of an owner. Idempotent.
    pub(crate) fn take(
        &mut self,
        owner: &Owner,
        leases: &[Lease],
        now: Time,
    ) -> Result<(), AllocateError> {
        let held: BTreeSet<IpAddr> = self.addresses_of(owner);
        let taken: BTreeSet<IpAddr> = leases.iter().map(|lease| lease.address).collect();
        if !held.is_subset(&taken) {
            self.release(owner);
        }
        for lease in leases {
            let (address, pool) = (lease.address, lease.pool.clone());
            let default = &self.manager.allocator().settings().default_pool;
            let pool = pool.unwrap_or_else(|| default.clone());
            if !self.document.given.contains_key(&address) {
                self.give(address, pool);
            }
        }
        self.request(owner, taken.into_iter().map(Want::Address), now)?;
        self.manager.allocator_mut().claim(owner).ok();
        Ok(())
    }

    /// Releases an owner's addresses, and removes them from those that can be allocated.
    pub(crate) fn release(&mut self, owner: &Owner) {
        let allocator = self.manager.allocator_mut();
        allocator.take_back(owner);
        allocator.rebalance();
        self.manager.publish(&mut self.document);
        self.manager.observe(self.document.clone());
    }

    fn request(
        &mut self,
        owner: &Owner,
        wants: impl Iterator<Item = Want>,
        now: Time,
    ) -> Result<BTreeSet<IpAddr>, AllocateError> {
        let requests = wants.map(|want| Request {
            owner: owner.clone(),
            pod: None,
            pool: None,
            want,
        });
        let given = self.manager.allocate(&requests.collect::<Vec<_>>(), now)?;
        Ok(given.iter().map(|given| given.lease.address).collect())
    }

    fn addresses_of(&self, owner: &Owner) -> BTreeSet<IpAddr> {
        let leases = self.manager.allocator().held_by(owner);
        leases.map(|lease| lease.address).collect()
    }
}

fn manager(pool: &str, leases: Vec<Lease>) -> Manager<AgentAddresses> {
    let state = State {
        leases,
        ..State::default()
    };
    let settings = AgentAddresses::settings(pool);
    let (allocator, _) = Allocator::restore(settings, state, None, Time::default());
    Manager::new(AgentAddresses, allocator)
}

fn given(lease: &Lease) -> Option<(IpAddr, String)> {
    Some((lease.address, lease.pool.clone()?))
}
