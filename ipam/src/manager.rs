//! An allocator for one kind of resource: the same machine for pods and for the agent's own
//! addresses.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    AllocateError, Allocator, Announcement, Barrier, Changes, Demand, EdgeRules, Lease, Request,
    Source, Time,
};

/// A kind of resource that draws addresses from pools: where its pools are read and written, and
/// what an answer carries. What else differs between kinds is a value: the formula of demand, the
/// delays and the barriers are [`Settings`](crate::Settings), first and last addresses stand at
/// each [`AnnouncedBlock`](crate::AnnouncedBlock).
pub trait Kind {
    /// The document of pools that is read and written.
    type Document;
    /// The data of an answer in addition to address and pool.
    type Details;

    /// Reads what the node has.
    fn read(&self, document: &Self::Document) -> Announcement;

    /// Writes what the node wants and keeps; answers whether that changed the document.
    fn write(&self, wanted: &Wanted, document: &mut Self::Document) -> bool;

    /// True if addresses of a pool keep their source out of the VPC; `None` while that is not
    /// known. Then nothing is given from it.
    fn skips_masquerade(&self, pool: &str) -> Option<bool>;

    /// The data of an answer for an address of a block of that source.
    fn details(
        &self,
        document: &Self::Document,
        source: &Source,
        block: IpNet,
        address: IpAddr,
    ) -> Self::Details;
}

/// The node's demand, and the blocks that it keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The demand.
    pub requested: Demand,
    /// The blocks that the node keeps, by pool.
    pub allocated: Vec<KeptBlocks>,
}

/// Blocks of one pool that the node keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptBlocks {
    /// The pool.
    pub pool: String,
    /// The rules for their first and last addresses.
    pub edges: EdgeRules,
    /// The blocks: IPv4 before IPv6, in the order of their addresses.
    pub cidrs: Vec<IpNet>,
}

/// The answer to a request: everything that an endpoint's intent needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation<D> {
    /// The lease: address, owner, block, until when it waits for its claim.
    pub lease: Lease,
    /// The pool.
    pub pool: String,
    /// True if the address keeps its source out of the VPC.
    pub skip_masquerade: bool,
    /// The data of the kind of resource.
    pub details: D,
}

/// An allocator for one kind of resource, and the document that it lives by.
#[derive(Clone, Debug)]
pub struct Manager<K: Kind> {
    kind: K,
    allocator: Allocator,
    document: Option<K::Document>,
}

impl<K: Kind> Manager<K> {
    /// A manager of a restored allocator, without a document.
    #[must_use]
    pub fn new(kind: K, allocator: Allocator) -> Self {
        Self {
            kind,
            allocator,
            document: None,
        }
    }

    /// Updates the allocator from a document. An unreadable or deleted document is not passed here:
    /// the last good one stays in force.
    pub fn observe(&mut self, document: K::Document) -> Changes {
        let announcement = self.kind.read(&document);
        self.document = Some(document);
        self.allocator.observe(announcement)
    }

    /// Replaces the kind with its pools and policies, and reads the document again.
    pub fn reconfigure(&mut self, kind: K) -> Changes {
        self.kind = kind;
        let announcement = self
            .document
            .as_ref()
            .map(|document| self.kind.read(document));
        announcement.map_or_else(Changes::default, |new| self.allocator.observe(new))
    }

    /// Gives all of several addresses or none: see [`Allocator::allocate_all`].
    ///
    /// # Errors
    ///
    /// Says why there is no address; nothing is held then that was not before.
    pub fn allocate(
        &mut self,
        requests: &[Request],
        now: Time,
    ) -> Result<Vec<Allocation<K::Details>>, AllocateError> {
        let Some(document) = &self.document else {
            return Err(AllocateError::Restoring {
                waiting: vec![Barrier::DOCUMENT],
            });
        };
        for request in requests {
            let pool = self.allocator.pool_for(request);
            skips(&self.kind, pool)?;
        }
        let leases = self.allocator.allocate_all(requests, now)?;
        let answers = leases.into_iter().map(|lease| {
            // The pool of an earlier lease can be another one than would be taken now.
            let pool = lease.pool.clone().unwrap_or_default();
            let (source, block) = self.allocator.whence(lease.address);
            Ok(Allocation {
                skip_masquerade: skips(&self.kind, &pool)?,
                details: self.kind.details(document, &source, block, lease.address),
                pool,
                lease,
            })
        });
        answers.collect()
    }

    /// Writes what the node wants and keeps into a document; answers whether that changed it.
    /// Before the first address can be given the document stays as it is: what is not read yet
    /// would be taken for given back.
    pub fn publish(&self, document: &mut K::Document) -> bool {
        self.wanted()
            .is_some_and(|wanted| self.kind.write(&wanted, document))
    }

    /// The node's demand and the blocks that it keeps; `None` before the first address can be
    /// given: blocks that are not read yet would seem to be given back.
    #[must_use]
    pub fn wanted(&self) -> Option<Wanted> {
        if self.allocator.waiting().next().is_some() {
            return None;
        }
        let mut allocated: Vec<KeptBlocks> = Vec::new();
        for (pool, block) in self.allocator.kept() {
            let edges = block.edges();
            let same = |kept: &&mut KeptBlocks| kept.pool == pool && kept.edges == edges;
            match allocated.iter_mut().find(same) {
                Some(kept) => kept.cidrs.push(block.cidr()),
                None => allocated.push(KeptBlocks {
                    pool: pool.to_owned(),
                    edges,
                    cidrs: vec![block.cidr()],
                }),
            }
        }
        allocated.sort();
        let requested = self.allocator.request();
        Some(Wanted {
            requested,
            allocated,
        })
    }

    /// The allocator, read-only.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// The allocator: claims, releases, time, readiness.
    pub fn allocator_mut(&mut self) -> &mut Allocator {
        &mut self.allocator
    }
}

fn skips<K: Kind>(kind: &K, pool: &str) -> Result<bool, AllocateError> {
    let unknown = || AllocateError::PolicyUnknown {
        pool: pool.to_owned(),
    };
    kind.skips_masquerade(pool).ok_or_else(unknown)
}
