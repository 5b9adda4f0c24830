//! Facts of EC2 that change seldom: subnets, route tables, security groups, VPCs, instance types.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud::call::query::Items;
use cloud::groups::Group;
use cloud::node::Facts;
use cloud::object::subnet::{RouteTable, Subnet, set_route_tables};
use cloud::{Forecast, Limits, SubnetId, Tags, TypeInfo, Vpc, VpcId};
use ipam::Time;
use ipnet::{Ipv4Net, Ipv6Net};

use crate::reads::Regular;

/// Time after which an instance type that EC2 does not know is requested again.
const ASKED_AGAIN: Duration = Duration::from_mins(5);
/// The limits of a type are read again after so long.
const TYPE_FOR: Duration = Duration::from_hours(24);

/// The CIDRs of a subnet.
type Cidrs = (Option<Ipv4Net>, Option<Ipv6Net>);

#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) facts: Facts,
    pub(crate) vpcs: BTreeMap<VpcId, Vpc>,
    tables: Vec<RouteTable>,
    pub(crate) forecasts: BTreeMap<SubnetId, Forecast>,
    /// The reads of this epoch that are complete.
    read: BTreeSet<Regular>,
    types: BTreeMap<String, TypeRead>,
}

/// The last read of an instance type.
#[derive(Clone, Debug)]
struct TypeRead {
    at: Time,
    /// The reason that it has no limits.
    fault: Option<String>,
}

impl Topology {
    pub(crate) fn new(eni_tags: Tags) -> Self {
        Self {
            facts: Facts {
                limits: BTreeMap::new(),
                subnets: BTreeMap::new(),
                groups: BTreeMap::new(),
                pools: BTreeMap::new(),
                addresses: None,
                eni_tags,
                epoch: Time::default(),
            },
            vpcs: BTreeMap::new(),
            tables: Vec::new(),
            forecasts: BTreeMap::new(),
            read: BTreeSet::new(),
            types: BTreeMap::new(),
        }
    }

    /// Begins an epoch: what was read before it does not count.
    pub(crate) fn begin(&mut self, epoch: Time) {
        self.facts.epoch = epoch;
        self.facts.addresses = None;
        self.read.clear();
    }

    /// Reports if everything that a plan needs was read in this epoch.
    pub(crate) fn is_read(&self) -> bool {
        let needed = [
            Regular::Subnets,
            Regular::RouteTables,
            Regular::Groups,
            Regular::Vpcs,
        ];
        needed.iter().all(|it| self.read.contains(it))
    }

    /// Stores a complete read. Returns true if the CIDRs of subnets or VPCs have changed.
    pub(crate) fn take(&mut self, items: Items, now: Time) -> bool {
        let before = self.cidrs();
        let regular = match items {
            Items::Subnets(subnets) => self.take_subnets(subnets, now),
            Items::RouteTables(tables) => {
                self.tables = tables;
                set_route_tables(&mut self.facts.subnets, &self.tables);
                Regular::RouteTables
            }
            Items::Groups(groups) => self.take_groups(groups),
            Items::Vpcs(vpcs) => {
                self.vpcs = vpcs.into_iter().map(|it| (it.id.clone(), it)).collect();
                Regular::Vpcs
            }
            Items::Enis(_) | Items::Instances(_) | Items::Types(_) | Items::Addresses(_) => {
                return false;
            }
        };
        self.read.insert(regular);
        self.cidrs() != before
    }

    /// The CIDRs that the status of a node needs.
    fn cidrs(&self) -> (BTreeMap<SubnetId, Cidrs>, BTreeMap<VpcId, Vpc>) {
        let subnets = self.facts.subnets.values();
        let subnets = subnets.map(|it| (it.id.clone(), (it.ipv4, it.ipv6)));
        (subnets.collect(), self.vpcs.clone())
    }

    fn take_subnets(&mut self, subnets: Vec<Subnet>, now: Time) -> Regular {
        self.forecasts
            .retain(|id, _| subnets.iter().any(|subnet| subnet.id == *id));
        // The number of free addresses is one of IPv4.
        for subnet in subnets.iter().filter(|it| it.ipv4.is_some()) {
            let forecast = self.forecasts.entry(subnet.id.clone()).or_default();
            forecast.add(subnet.free, now);
        }
        let by_id = subnets.into_iter().map(|it| (it.id.clone(), it));
        self.facts.subnets = by_id.collect();
        set_route_tables(&mut self.facts.subnets, &self.tables);
        Regular::Subnets
    }

    fn take_groups(&mut self, groups: Vec<Group>) -> Regular {
        let by_id = groups.into_iter().map(|it| (it.id.clone(), it));
        self.facts.groups = by_id.collect();
        Regular::Groups
    }

    /// Stores a complete read of instance types.
    pub(crate) fn take_types(
        &mut self,
        requested: &BTreeSet<String>,
        infos: &[TypeInfo],
        now: Time,
    ) {
        for name in requested {
            let info = infos.iter().find(|it| it.name == *name);
            let limits = match info.map(Limits::of) {
                Some(Ok(limits)) => Ok(limits),
                Some(Err(error)) => Err(error.to_string()),
                None => Err(format!("EC2 has no instance type {name}")),
            };
            let fault = limits.as_ref().err().cloned();
            // Limits that were read once hold on until others are read.
            if let Ok(limits) = limits {
                self.facts.limits.insert(name.clone(), limits);
            }
            self.types.insert(name.clone(), TypeRead { at: now, fault });
        }
    }

    /// Reports if a type is to be read.
    pub(crate) fn wants_type(&self, name: &str, now: Time) -> bool {
        self.types.get(name).is_none_or(|it| {
            let pause = match it.fault {
                Some(_) => ASKED_AGAIN,
                None => TYPE_FOR,
            };
            now.since(it.at) >= pause
        })
    }

    /// The reason that a type has no limits, once it was read.
    pub(crate) fn type_fault(&self, name: &str) -> Option<&str> {
        self.types.get(name)?.fault.as_deref()
    }
}
