//! The calls of EC2 that an operator makes.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A call. EC2 counts each of them by itself. Settings name it in kebab-case.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Action {
    /// `DescribeNetworkInterfaces`.
    DescribeEnis,
    /// `DescribeInstances`.
    DescribeInstances,
    /// `DescribeSubnets`.
    DescribeSubnets,
    /// `DescribeRouteTables`.
    DescribeRouteTables,
    /// `DescribeSecurityGroups`.
    DescribeGroups,
    /// `DescribeVpcs`.
    DescribeVpcs,
    /// `DescribeInstanceTypes`.
    DescribeTypes,
    /// `DescribeAddresses`.
    DescribeAddresses,
    /// `CreateNetworkInterface`.
    Create,
    /// `AttachNetworkInterface`.
    Attach,
    /// `ModifyNetworkInterfaceAttribute`.
    Modify,
    /// `AssignPrivateIpAddresses`.
    Assign,
    /// `AssignIpv6Addresses`.
    AssignIpv6,
    /// `UnassignPrivateIpAddresses`.
    Unassign,
    /// `DetachNetworkInterface`.
    Detach,
    /// `DeleteNetworkInterface`.
    Delete,
    /// `AssociateAddress`.
    Associate,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 17] = [
        Self::DescribeEnis,
        Self::DescribeInstances,
        Self::DescribeSubnets,
        Self::DescribeRouteTables,
        Self::DescribeGroups,
        Self::DescribeVpcs,
        Self::DescribeTypes,
        Self::DescribeAddresses,
        Self::Create,
        Self::Attach,
        Self::Modify,
        Self::Assign,
        Self::AssignIpv6,
        Self::Unassign,
        Self::Detach,
        Self::Delete,
        Self::Associate,
    ];

    /// True for a read.
    #[must_use]
    pub fn is_read(self) -> bool {
        self.name().starts_with("Describe")
    }

    /// The name of EC2, for messages and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DescribeEnis => "DescribeNetworkInterfaces",
            Self::DescribeInstances => "DescribeInstances",
            Self::DescribeSubnets => "DescribeSubnets",
            Self::DescribeRouteTables => "DescribeRouteTables",
            Self::DescribeGroups => "DescribeSecurityGroups",
            Self::DescribeVpcs => "DescribeVpcs",
            Self::DescribeTypes => "DescribeInstanceTypes",
            Self::DescribeAddresses => "DescribeAddresses",
            Self::Create => "CreateNetworkInterface",
            Self::Attach => "AttachNetworkInterface",
            Self::Modify => "ModifyNetworkInterfaceAttribute",
            Self::Assign => "AssignPrivateIpAddresses",
            Self::AssignIpv6 => "AssignIpv6Addresses",
            Self::Unassign => "UnassignPrivateIpAddresses",
            Self::Detach => "DetachNetworkInterface",
            Self::Delete => "DeleteNetworkInterface",
            Self::Associate => "AssociateAddress",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
