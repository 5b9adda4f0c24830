//! Reads of EC2, a page at a time: each page is a call and takes of a budget.

use std::collections::BTreeSet;

use crate::elastic::Elastic;
use crate::groups::Group;
use crate::inventory::Scope;
use crate::object::subnet::{RouteTable, Subnet};
use crate::{Action, Eni, Instance, InstanceId, TypeInfo, Vpc, VpcId};

/// A page to read. Empty `vpcs` stand for no filter by VPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The objects.
    pub what: What,
    /// The VPCs that they are of.
    pub vpcs: BTreeSet<VpcId>,
    /// The token of the page; none for the first one.
    pub page: Option<String>,
}

/// Objects of EC2. A name that EC2 does not know has no item in the answer, and is no failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// ENIs.
    Enis(Scope),
    /// Instances with these ids.
    Instances(BTreeSet<InstanceId>),
    /// Subnets.
    Subnets,
    /// Route tables.
    RouteTables,
    /// Security groups.
    Groups,
    /// VPCs.
    Vpcs,
    /// Instance types of these names.
    Types(BTreeSet<String>),
    /// Elastic IP addresses of the account in the region. EC2 has neither pages nor VPCs of them.
    Addresses,
}

/// A page of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The items.
    pub items: Items,
    /// The token of the next page.
    pub next: Option<String>,
}

/// Items of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Items {
    /// ENIs.
    Enis(Vec<Eni>),
    /// Instances.
    Instances(Vec<Instance>),
    /// Subnets.
    Subnets(Vec<Subnet>),
    /// Route tables.
    RouteTables(Vec<RouteTable>),
    /// Security groups.
    Groups(Vec<Group>),
    /// VPCs.
    Vpcs(Vec<Vpc>),
    /// Instance types.
    Types(Vec<TypeInfo>),
    /// Elastic IP addresses.
    Addresses(Vec<Elastic>),
}

impl What {
    /// The action whose budget and pauses count for the read.
    #[must_use]
    pub fn action(&self) -> Action {
        match self {
            Self::Enis(_) => Action::DescribeEnis,
            Self::Instances(_) => Action::DescribeInstances,
            Self::Subnets => Action::DescribeSubnets,
            Self::RouteTables => Action::DescribeRouteTables,
            Self::Groups => Action::DescribeGroups,
            Self::Vpcs => Action::DescribeVpcs,
            Self::Types(_) => Action::DescribeTypes,
            Self::Addresses => Action::DescribeAddresses,
        }
    }

    /// No items yet.
    #[must_use]
    pub fn items(&self) -> Items {
        match self {
            Self::Enis(_) => Items::Enis(Vec::new()),
            Self::Instances(_) => Items::Instances(Vec::new()),
            Self::Subnets => Items::Subnets(Vec::new()),
            Self::RouteTables => Items::RouteTables(Vec::new()),
            Self::Groups => Items::Groups(Vec::new()),
            Self::Vpcs => Items::Vpcs(Vec::new()),
            Self::Types(_) => Items::Types(Vec::new()),
            Self::Addresses => Items::Addresses(Vec::new()),
        }
    }
}

impl Items {
    /// Adds a later page. Returns false if it is of another kind.
    pub fn extend(&mut self, page: Self) -> bool {
        match (self, page) {
            (Self::Enis(all), Self::Enis(page)) => all.extend(page),
            (Self::Instances(all), Self::Instances(page)) => all.extend(page),
            (Self::Subnets(all), Self::Subnets(page)) => all.extend(page),
            (Self::RouteTables(all), Self::RouteTables(page)) => all.extend(page),
            (Self::Groups(all), Self::Groups(page)) => all.extend(page),
            (Self::Vpcs(all), Self::Vpcs(page)) => all.extend(page),
            (Self::Types(all), Self::Types(page)) => all.extend(page),
            (Self::Addresses(all), Self::Addresses(page)) => all.extend(page),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_one_kind_add_up_and_no_other_kind_joins_them() {
        let info = |name: &str| TypeInfo {
            name: name.to_owned(),
            enis: 3,
            cards: [(0, 3)].into(),
            ipv4_per_eni: 10,
            ipv6_per_eni: 10,
            hypervisor: "nitro".to_owned(),
            bare_metal: false,
        };
        let mut all = What::Types(BTreeSet::new()).items();
        assert!(all.extend(Items::Types(vec![info("a")])));
        assert!(all.extend(Items::Types(vec![info("b")])));
        assert!(!all.extend(Items::Subnets(Vec::new())));
        assert_eq!(all, Items::Types(vec![info("a"), info("b")]));
    }
}
