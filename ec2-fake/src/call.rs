//! Calls as values.

use std::net::Ipv4Addr;

use crate::family::Family;
use crate::space::Ask;
use crate::world::Tags;

/// A request: a call, and if it is a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The call.
    pub call: Call,
    /// Set when the call is judged and not carried out.
    pub dry_run: bool,
}

/// A call of EC2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A listing.
    Describe(Describe),
    /// `CreateNetworkInterface`.
    Create(Box<Create>),
    /// `AttachNetworkInterface`.
    Attach(Attach),
    /// `DetachNetworkInterface`, by attachment.
    Detach(String),
    /// `DeleteNetworkInterface`, by interface.
    Delete(String),
    /// `ModifyNetworkInterfaceAttribute`.
    Modify(Modify),
    /// `AssignPrivateIpAddresses` or `AssignIpv6Addresses`.
    Assign(Assign),
    /// `UnassignPrivateIpAddresses` or `UnassignIpv6Addresses`.
    Unassign(Assign),
    /// `CreateTags`.
    Tag {
        /// Ids of resources.
        resources: Vec<String>,
        /// The tags.
        tags: Tags,
    },
    /// `AssociateAddress`.
    Associate(Associate),
    /// `DisassociateAddress`, by association.
    Disassociate(String),
}

/// The resources of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// `DescribeAddresses`.
    Addresses,
    /// `DescribeInstances`.
    Instances,
    /// `DescribeInstanceTypes`.
    InstanceTypes,
    /// `DescribeNetworkInterfaces`.
    Interfaces,
    /// `DescribeRouteTables`.
    RouteTables,
    /// `DescribeSecurityGroups`.
    Groups,
    /// `GetSecurityGroupsForVpc`.
    GroupsForVpc,
    /// `DescribeSubnets`.
    Subnets,
    /// `DescribeTags`.
    Tags,
    /// `DescribeVpcs`.
    Vpcs,
}

/// A filter: any of the values, which may have `*` and `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The name.
    pub name: String,
    /// The values.
    pub values: Vec<String>,
}

/// A listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Describe {
    /// The resources.
    pub what: What,
    /// Ids; for `GetSecurityGroupsForVpc` the VPC.
    pub ids: Vec<String>,
    /// The filters, of which all have to match.
    pub filters: Vec<Filter>,
    /// The size of a page.
    pub max: Option<usize>,
    /// The token of the next page.
    pub next: Option<String>,
}

/// A creation of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// The subnet.
    pub subnet: String,
    /// The security groups.
    pub groups: Vec<String>,
    /// The description.
    pub description: String,
    /// The primary IPv4 address.
    pub primary: Option<Ipv4Addr>,
    /// Further IPv4 addresses.
    pub ipv4: Ask,
    /// IPv6 addresses.
    pub ipv6: Ask,
    /// `interface`, `efa`, `efa-only`, `branch` or `trunk`.
    pub kind: Option<String>,
    /// The client token.
    pub token: Option<String>,
    /// The tags.
    pub tags: Tags,
}

/// An attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The interface.
    pub eni: String,
    /// The instance.
    pub instance: String,
    /// The device index.
    pub index: u16,
    /// The network card.
    pub card: u16,
}

/// A change of an interface; EC2 accepts one attribute a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modify {
    /// The interface.
    pub eni: String,
    /// The change.
    pub change: Change,
}

/// A change of one attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The security groups.
    Groups(Vec<String>),
    /// The description.
    Description(String),
    /// The check of source and destination.
    SourceDestCheck(bool),
    /// Delete the interface with its instance.
    DeleteOnTermination {
        /// The attachment.
        attachment: String,
        /// The value.
        value: bool,
    },
}

/// Addresses that are given to an interface or taken from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assign {
    /// The family.
    pub family: Family,
    /// The interface.
    pub eni: String,
    /// The addresses.
    pub ask: Ask,
    /// Take addresses from other interfaces.
    pub reassign: bool,
}

/// An association of an Elastic IP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Associate {
    /// The allocation.
    pub allocation: String,
    /// The instance, for its primary interface.
    pub instance: Option<String>,
    /// The interface.
    pub eni: Option<String>,
    /// The private address; the primary one when unset.
    pub private: Option<Ipv4Addr>,
    /// Take the address from another interface.
    pub reassociate: bool,
}

impl What {
    /// Every listing.
    pub const ALL: [Self; 10] = [
        Self::Addresses,
        Self::Instances,
        Self::InstanceTypes,
        Self::Interfaces,
        Self::RouteTables,
        Self::Groups,
        Self::GroupsForVpc,
        Self::Subnets,
        Self::Tags,
        Self::Vpcs,
    ];

    /// The action.
    #[must_use]
    pub fn action(self) -> &'static str {
        match self {
            Self::Addresses => "DescribeAddresses",
            Self::Instances => "DescribeInstances",
            Self::InstanceTypes => "DescribeInstanceTypes",
            Self::Interfaces => "DescribeNetworkInterfaces",
            Self::RouteTables => "DescribeRouteTables",
            Self::Groups => "DescribeSecurityGroups",
            Self::GroupsForVpc => "GetSecurityGroupsForVpc",
            Self::Subnets => "DescribeSubnets",
            Self::Tags => "DescribeTags",
            Self::Vpcs => "DescribeVpcs",
        }
    }

    /// The sizes that a page may have; `None` for a listing without pages.
    #[must_use]
    pub fn page(self) -> Option<std::ops::RangeInclusive<usize>> {
        match self {
            Self::Addresses => None,
            Self::InstanceTypes | Self::RouteTables => Some(5..=100),
            Self::Instances
            | Self::Interfaces
            | Self::Groups
            | Self::GroupsForVpc
            | Self::Subnets
            | Self::Tags
            | Self::Vpcs => Some(5..=1_000),
        }
    }
}

impl Call {
    /// The action.
    #[must_use]
    pub fn action(&self) -> &'static str {
        match self {
            Self::Describe(describe) => describe.what.action(),
            Self::Create(_) => "CreateNetworkInterface",
            Self::Attach(_) => "AttachNetworkInterface",
            Self::Detach(_) => "DetachNetworkInterface",
            Self::Delete(_) => "DeleteNetworkInterface",
            Self::Modify(_) => "ModifyNetworkInterfaceAttribute",
            Self::Assign(assign) => match assign.family {
                Family::V4 => "AssignPrivateIpAddresses",
                Family::V6 => "AssignIpv6Addresses",
            },
            Self::Unassign(assign) => match assign.family {
                Family::V4 => "UnassignPrivateIpAddresses",
                Family::V6 => "UnassignIpv6Addresses",
            },
            Self::Tag { .. } => "CreateTags",
            Self::Associate(_) => "AssociateAddress",
            Self::Disassociate(_) => "DisassociateAddress",
        }
    }

    /// The ids that a call names.
    #[must_use]
    pub fn ids(&self) -> Vec<&str> {
        match self {
            Self::Describe(describe) => describe.ids.iter().map(String::as_str).collect(),
            Self::Create(create) => {
                let values = create.tags.values().map(String::as_str);
                values.chain([create.subnet.as_str()]).collect()
            }
            Self::Attach(attach) => vec![&attach.eni, &attach.instance],
            Self::Detach(id) | Self::Delete(id) | Self::Disassociate(id) => vec![id],
            Self::Modify(modify) => vec![&modify.eni],
            Self::Assign(assign) | Self::Unassign(assign) => vec![&assign.eni],
            Self::Tag { resources, .. } => resources.iter().map(String::as_str).collect(),
            Self::Associate(associate) => {
                let owner = associate.eni.as_deref().or(associate.instance.as_deref());
                owner
                    .into_iter()
                    .chain([associate.allocation.as_str()])
                    .collect()
            }
        }
    }
}
