//! The subnet for the next block or ENI, by its free addresses less those of calls in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam::{Family, Time};

use crate::object::subnet::{Location, Rule, Subnet, Subnets};
use crate::{Kind, SubnetId};

/// A full subnet is tried again after so long.
pub const FULL_FOR: Duration = Duration::from_mins(15);
/// A full subnet is tried again when so many addresses more are free.
pub const FREED: u32 = 16;

/// Knowledge about the room in subnets beside their count of free addresses.
#[derive(Clone, Debug, Default)]
pub struct Pressure {
    in_flight: BTreeMap<SubnetId, u32>,
    /// Addresses that were taken since the subnet was read.
    spent: Vec<(SubnetId, u32, Time)>,
    full: BTreeMap<(SubnetId, Kind), Full>,
}

#[derive(Clone, Copy, Debug)]
struct Full {
    since: Time,
    free: u32,
}

impl Pressure {
    /// A call begins that takes so many addresses.
    pub fn begin(&mut self, subnet: &SubnetId, addresses: u32) {
        let count = self.in_flight.entry(subnet.clone()).or_default();
        *count = count.saturating_add(addresses);
    }

    /// The call ended. Addresses that it took are counted here until the subnet was read again.
    pub fn end(&mut self, subnet: &SubnetId, addresses: u32, taken: Option<Time>) {
        if let Some(count) = self.in_flight.get_mut(subnet) {
            *count = count.saturating_sub(addresses);
            if *count == 0 {
                self.in_flight.remove(subnet);
            }
        }
        if let Some(at) = taken {
            self.spent.push((subnet.clone(), addresses, at));
        }
    }

    /// Subnets were read: their counts of free addresses have what was taken before the read began.
    pub fn read(&mut self, begun: Time) {
        self.spent.retain(|(_, _, at)| *at >= begun);
    }

    /// EC2 found no room for a kind of block.
    pub fn refuse(&mut self, subnet: &SubnetId, free: u32, kind: Kind, now: Time) {
        self.full
            .insert((subnet.clone(), kind), Full { since: now, free });
    }

    /// Reports if EC2 found no room there lately.
    #[must_use]
    pub fn is_full(&self, subnet: &Subnet, kind: Kind, now: Time) -> bool {
        let full = self.full.get(&(subnet.id.clone(), kind));
        full.is_some_and(|it| {
            now.since(it.since) < FULL_FOR && subnet.free < it.free.saturating_add(FREED)
        })
    }

    /// Full subnets, with the time at which each is tried again.
    pub fn full(&self) -> impl Iterator<Item = (&SubnetId, Kind, Time)> {
        self.full
            .iter()
            .map(|((id, kind), it)| (id, *kind, it.since.after(FULL_FOR)))
    }

    /// Forgets what holds no more.
    pub fn forget(&mut self, now: Time) {
        self.full.retain(|_, it| now.since(it.since) < FULL_FOR);
    }

    /// Addresses that calls took since the subnet was read, those in flight included.
    #[must_use]
    pub fn taken(&self, subnet: &SubnetId) -> u32 {
        let in_flight = self.in_flight.get(subnet).copied().unwrap_or(0);
        let spent = self.spent.iter().filter(|(id, _, _)| id == subnet);
        spent.fold(in_flight, |sum, (_, n, _)| sum.saturating_add(*n))
    }

    /// Addresses that a subnet has for a kind of block: none where EC2 refused it lately.
    #[must_use]
    pub fn room(&self, subnet: &Subnet, kind: Kind, now: Time) -> u32 {
        if !subnet.serves(kind.family()) || self.is_full(subnet, kind, now) {
            return 0;
        }
        match kind.family() {
            Family::V4 => subnet.free.saturating_sub(self.taken(&subnet.id)),
            // No subnet of IPv6 was ever counted out; EC2 refuses where prefixes are taken.
            Family::V6 => u32::MAX,
        }
    }
}

/// No subnet can take the ENI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// No subnet is eligible.
    #[error("no subnet of {family} matches {rule} in VPC {vpc} and zone {zone}")]
    None {
        /// The family that the subnet has to serve.
        family: Family,
        /// The last rule that was tried, with its values.
        rule: String,
        /// The VPC.
        vpc: String,
        /// The zone.
        zone: String,
    },
    /// All eligible ones are full.
    #[error("no room in subnets {}: free addresses or name other subnets", .0.join(", "))]
    Full(Vec<String>),
}

/// The subnets for an ENI, those of one rule only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places<'a> {
    /// The rule that they are eligible by.
    pub rule: Rule,
    subnets: Vec<&'a Subnet>,
    own: Option<&'a SubnetId>,
}

impl Location {
    /// The subnets of the best rule that has any with room for an ENI and a block of a family.
    ///
    /// # Errors
    /// When no subnet is eligible, or none has room.
    pub fn places<'a>(
        &'a self,
        subnets: &'a Subnets,
        family: Family,
        pressure: &Pressure,
        now: Time,
    ) -> Result<Places<'a>, PlaceError> {
        let smallest = match family {
            Family::V4 => Kind::Address,
            Family::V6 => Kind::PrefixV6,
        };
        let mut full = Vec::new();
        let mut last = Rule::Zone;
        for rule in self.rules() {
            last = *rule;
            let eligible: Vec<&Subnet> = self
                .eligible(*rule, subnets)
                .filter(|it| it.serves(family))
                .collect();
            if eligible.iter().any(|it| fits(it, smallest, pressure, now)) {
                return Ok(Places {
                    rule: *rule,
                    subnets: eligible,
                    own: self.own.as_ref(),
                });
            }
            full = eligible.iter().map(|it| it.id.to_string()).collect();
        }
        if full.is_empty() {
            return Err(PlaceError::None {
                family,
                rule: self.describe(last),
                vpc: self.vpc.to_string(),
                zone: self.zone.clone(),
            });
        }
        Err(PlaceError::Full(full))
    }
}

impl<'a> Places<'a> {
    /// The best subnet for an ENI with so many addresses in blocks of a kind: one that has room for
    /// all, the node's own before others, then the one with most room.
    #[must_use]
    pub fn best(
        &self,
        kind: Kind,
        addresses: u32,
        pressure: &Pressure,
        now: Time,
    ) -> Option<&'a Subnet> {
        let fitting = self
            .subnets
            .iter()
            .copied()
            .filter(|it| fits(it, kind, pressure, now));
        fitting.max_by_key(|it| {
            let room = pressure.room(it, kind, now);
            let enough = room > addresses;
            (
                enough,
                Some(&it.id) == self.own,
                room,
                std::cmp::Reverse(&it.id),
            )
        })
    }
}

/// Reports if a subnet has room for an ENI's own address and one block.
fn fits(subnet: &Subnet, kind: Kind, pressure: &Pressure, now: Time) -> bool {
    pressure.room(subnet, kind, now) > kind.addresses()
}

pub(super) mod forecast;
#[cfg(test)]
mod tests;
