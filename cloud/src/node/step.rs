//! A step: one call that changes something.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::IpNet;

use crate::{Action, AllocationId, AttachmentId, EniId, GroupId, InstanceId, Kind, SubnetId, Tags};

/// One call that changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create an ENI.
    Create(Box<Create>),
    /// Attach a loose ENI.
    Attach {
        /// The ENI.
        eni: EniId,
        /// The instance.
        instance: InstanceId,
        /// The device index on card 0.
        index: u16,
    },
    /// Give an ENI blocks.
    Assign {
        /// The ENI.
        eni: EniId,
        /// Its subnet.
        subnet: SubnetId,
        /// The blocks.
        blocks: Blocks,
    },
    /// Have EC2 delete an ENI with its instance.
    Mark {
        /// The ENI.
        eni: EniId,
        /// Its attachment.
        attachment: AttachmentId,
    },
    /// Set an ENI's security groups.
    Group {
        /// The ENI.
        eni: EniId,
        /// The groups.
        groups: BTreeSet<GroupId>,
    },
    /// Take blocks from an ENI.
    Unassign {
        /// The ENI.
        eni: EniId,
        /// The blocks.
        blocks: BTreeSet<IpNet>,
    },
    /// Detach an ENI that gives nothing.
    Detach {
        /// The ENI.
        eni: EniId,
        /// Its attachment.
        attachment: AttachmentId,
    },
    /// Delete a loose ENI.
    Delete {
        /// The ENI.
        eni: EniId,
    },
    /// Give the own address of an ENI an Elastic IP address that nothing has.
    Associate {
        /// The ENI.
        eni: EniId,
        /// The allocation of the Elastic IP address.
        allocation: AllocationId,
        /// The Elastic IP address.
        address: Ipv4Addr,
    },
}

/// Blocks of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The kind.
    pub kind: Kind,
    /// Their number.
    pub count: u32,
}

/// The parameters of a creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// The instance that the ENI is for.
    pub instance: InstanceId,
    /// The subnet.
    pub subnet: SubnetId,
    /// The security groups.
    pub groups: BTreeSet<GroupId>,
    /// The description.
    pub description: String,
    /// IPv4 blocks in the same call.
    pub ipv4: Option<Blocks>,
    /// An IPv6 prefix in the same call.
    pub ipv6_prefix: bool,
    /// The tags.
    pub tags: Tags,
    /// The client token.
    pub token: String,
}

impl Blocks {
    /// IPv4 addresses of the blocks.
    #[must_use]
    pub fn addresses(self) -> u32 {
        self.count.saturating_mul(self.kind.addresses())
    }
}

impl Step {
    /// The call.
    #[must_use]
    pub fn action(&self) -> Action {
        match self {
            Self::Create(_) => Action::Create,
            Self::Attach { .. } => Action::Attach,
            Self::Assign { blocks, .. } if blocks.kind == Kind::PrefixV6 => Action::AssignIpv6,
            Self::Assign { .. } => Action::Assign,
            Self::Mark { .. } | Self::Group { .. } => Action::Modify,
            Self::Unassign { .. } => Action::Unassign,
            Self::Detach { .. } => Action::Detach,
            Self::Delete { .. } => Action::Delete,
            Self::Associate { .. } => Action::Associate,
        }
    }

    /// The ENI, unless the step creates it.
    #[must_use]
    pub fn eni(&self) -> Option<&EniId> {
        match self {
            Self::Create(_) => None,
            Self::Attach { eni, .. }
            | Self::Assign { eni, .. }
            | Self::Mark { eni, .. }
            | Self::Group { eni, .. }
            | Self::Unassign { eni, .. }
            | Self::Detach { eni, .. }
            | Self::Delete { eni }
            | Self::Associate { eni, .. } => Some(eni),
        }
    }

    /// The IPv4 addresses that the step takes, and the subnet that it takes them of.
    pub(super) fn taking(&self) -> Option<(&SubnetId, u32)> {
        match self {
            Self::Create(create) => {
                let blocks = create.ipv4.map_or(0, Blocks::addresses);
                Some((&create.subnet, blocks.saturating_add(1)))
            }
            Self::Assign { subnet, blocks, .. } => Some((subnet, blocks.addresses())),
            _ => None,
        }
    }

    /// The kind of block that a full subnet refused. A creation is tried once more without IPv6.
    pub(super) fn refused_kind(&self) -> Option<Kind> {
        match self {
            Self::Create(create) if create.ipv6_prefix => Some(Kind::PrefixV6),
            Self::Create(create) => Some(create.ipv4.map_or(Kind::Address, |it| it.kind)),
            Self::Assign { blocks, .. } => Some(blocks.kind),
            _ => None,
        }
    }
}
