//! Short names for values that tests are full of.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipam::{
    AllocateError, Allocation, Allocator, AnnouncedBlock, Announcement, EdgeRules, Family, Formula,
    Kind, Lease, Manager, Owner, Request, Settings, Source, State, Time, Want,
};
use ipnet::IpNet;

pub(crate) const V4: Family = Family::V4;
pub(crate) const V6: Family = Family::V6;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A moment, in seconds.
pub(crate) fn at(seconds: u64) -> Time {
    Time::from_millis(1_000_000).after(Duration::from_secs(seconds))
}

pub(crate) fn owner(name: &str) -> Owner {
    Owner {
        container_id: name.to_owned(),
        interface: "eth0".to_owned(),
    }
}

pub(crate) fn any(name: &str, pool: &str, family: Family) -> Request {
    Request {
        owner: owner(name),
        pod: None,
        pool: Some(pool.to_owned()),
        want: Want::Any(family),
    }
}

pub(crate) fn exactly(name: &str, address: &str) -> Request {
    Request {
        owner: owner(name),
        pod: None,
        pool: None,
        want: Want::Address(ip(address)),
    }
}

/// A block of an ENI.
pub(crate) fn on(eni: &str, pool: &str, cidr: &str) -> AnnouncedBlock {
    AnnouncedBlock {
        cidr: net(cidr),
        source: Source::Device(eni.to_owned()),
        pool: Some(pool.to_owned()),
        edges: EdgeRules::ALL,
    }
}

/// A block of a plain pool.
pub(crate) fn plain(pool: &str, cidr: &str) -> AnnouncedBlock {
    AnnouncedBlock {
        cidr: net(cidr),
        source: Source::Node,
        pool: Some(pool.to_owned()),
        edges: EdgeRules::default(),
    }
}

pub(crate) fn announce(blocks: &[AnnouncedBlock]) -> Announcement {
    Announcement {
        blocks: blocks.to_vec(),
        ..Announcement::default()
    }
}

pub(crate) fn settings(formula: Formula, pre_allocation: &str) -> Settings {
    Settings {
        formula,
        pre_allocation: pre_allocation.parse().unwrap(),
        barriers: BTreeSet::new(),
        ..Settings::default()
    }
}

/// An allocator that knows nothing of earlier, without barriers.
pub(crate) fn fresh(settings: Settings) -> Allocator {
    Allocator::restore(settings, State::default(), None, at(0)).0
}

/// One with blocks, everything ready.
pub(crate) fn ready(blocks: &[AnnouncedBlock]) -> Allocator {
    let mut allocator = fresh(settings(Formula::Linear, ""));
    allocator.observe(announce(blocks));
    set_ready(&mut allocator, &["eni-1", "eni-2"]);
    allocator
}

pub(crate) fn set_ready(allocator: &mut Allocator, enis: &[&str]) {
    allocator.set_ready(enis.iter().map(|eni| (*eni).to_owned()).collect());
}

/// Allocates an IPv4 address of the pool `default` to an owner.
pub(crate) fn get(
    allocator: &mut Allocator,
    name: &str,
    seconds: u64,
) -> Result<Lease, AllocateError> {
    allocator.allocate(&any(name, "default", V4), at(seconds))
}

/// Time goes on, and nothing is left of earlier owners.
pub(crate) fn pass(allocator: &mut Allocator, seconds: u64) {
    allocator.advance(at(seconds), |_| true);
}

/// One request of a manager.
pub(crate) trait One<D> {
    fn one(&mut self, request: &Request, now: Time) -> Result<Allocation<D>, AllocateError>;
}

impl<K: Kind> One<K::Details> for Manager<K> {
    fn one(
        &mut self,
        request: &Request,
        now: Time,
    ) -> Result<Allocation<K::Details>, AllocateError> {
        let mut all = self.allocate(std::slice::from_ref(request), now)?;
        Ok(all.remove(0))
    }
}
