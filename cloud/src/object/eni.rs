//! An ENI as EC2 shows it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipam::Family;
use ipnet::IpNet;

use crate::object::block;
use crate::{AttachmentId, EniId, GroupId, InstanceId, SubnetId, Tags, VpcId};

/// An ENI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eni {
    /// Its id.
    pub id: EniId,
    /// The part of the network that it is in.
    pub placement: Placement,
    /// Its MAC.
    pub mac: [u8; 6],
    /// The kind of interface.
    pub kind: InterfaceKind,
    /// Its description.
    pub description: String,
    /// Its own address; none in a subnet that has IPv6 alone.
    pub own: Option<Ipv4Addr>,
    /// The associated public address.
    pub public: Option<Ipv4Addr>,
    /// Addresses and prefixes beside its own address.
    pub blocks: BTreeSet<IpNet>,
    /// Its security groups.
    pub groups: BTreeSet<GroupId>,
    /// Its tags.
    pub tags: Tags,
    /// EC2 still makes it: calls that name it are refused.
    pub is_pending: bool,
    /// Its attachment.
    pub attachment: Option<Attachment>,
}

/// The part of the network that an ENI is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its VPC.
    pub vpc: VpcId,
    /// Its subnet.
    pub subnet: SubnetId,
    /// Its availability zone.
    pub zone: String,
}

/// The kind of an interface, `interfaceType` of EC2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// `interface`, and `efa`, which has addresses as well.
    Standard,
    /// `efa-only`: it has no addresses.
    EfaOnly,
    /// `trunk`: pods' own interfaces ride on it.
    Trunk,
    /// `branch`: an interface that rides on a trunk.
    Branch,
    /// Any other, by EC2's word.
    Other(String),
}

impl InterfaceKind {
    /// The kind by EC2's word.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "" | "interface" | "efa" => Self::Standard,
            "efa-only" => Self::EfaOnly,
            "trunk" => Self::Trunk,
            "branch" => Self::Branch,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// The bond of an ENI and an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Its id.
    pub id: AttachmentId,
    /// The instance; none where another AWS service holds the ENI.
    pub instance: Option<InstanceId>,
    /// The device index.
    pub index: u16,
    /// The network card.
    pub card: u16,
    /// Its progress.
    pub state: AttachState,
    /// EC2 deletes the ENI with the instance.
    pub delete_on_termination: bool,
}

/// The progress of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachState {
    /// The device is not there yet.
    Attaching,
    /// The device is there.
    Attached,
    /// The device goes.
    Detaching,
}

impl Eni {
    /// The instance that the ENI is attached to.
    #[must_use]
    pub fn instance(&self) -> Option<&InstanceId> {
        self.attachment.as_ref()?.instance.as_ref()
    }

    /// Reports if nothing holds the ENI.
    #[must_use]
    pub fn is_loose(&self) -> bool {
        self.attachment.is_none()
    }

    /// Reports if the ENI's device is there.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.attachment
            .as_ref()
            .is_some_and(|it| it.state == AttachState::Attached)
    }

    /// Reports if the ENI has the address.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        self.own.map(IpAddr::V4) == Some(address)
            || self.blocks.iter().any(|block| block.contains(&address))
    }

    /// Slots that the ENI's blocks of a family take; the own address takes none of them.
    #[must_use]
    pub fn taken(&self, family: Family) -> u32 {
        let blocks = self
            .blocks
            .iter()
            .filter(|block| Family::of_net(**block) == family);
        u32::try_from(blocks.count()).unwrap_or(u32::MAX)
    }

    /// IPv4 addresses that pods can have. The own address counts where the node gives it to pods.
    #[must_use]
    pub fn available(&self, with_own: bool) -> u32 {
        let own = u32::from(with_own && self.own.is_some());
        block::addresses_v4(&self.blocks).saturating_add(own)
    }
}
