//! The calls of EC2 that an operator makes.

use std::fmt;

/// A call. EC2 counts each of them by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Reads with a filter or by id.
    Describe,
    /// Reads of everything.
    List,
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
    pub const ALL: [Self; 11] = [
        Self::Describe,
        Self::List,
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

    /// The name for messages and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Describe => "Describe",
            Self::List => "List",
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
