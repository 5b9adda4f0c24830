//! Interfaces, instances and subnets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use jiff::Timestamp;

use crate::family::Family;
use crate::settings::limits::Limits;
use crate::space::Space;
use crate::world::{self, Tags};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eni {
    /// The id.
    pub id: String,
    /// The part of the network that it is in.
    pub placement: Placement,
    /// The MAC.
    pub mac: String,
    /// The description.
    pub description: String,
    /// `interface` or another kind.
    pub kind: String,
    /// The security groups.
    pub groups: Vec<String>,
    /// The addresses.
    pub addresses: Addresses,
    /// The tags.
    pub tags: Tags,
    /// The check of source and destination.
    pub source_dest_check: bool,
    /// Set when another AWS service manages the interface.
    pub requester_managed: bool,
    /// Set while mutations and reads by id do not know the interface.
    pub is_pending: bool,
    /// The attachment.
    pub attachment: Option<Attachment>,
}

/// The part of the network that an interface is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The subnet.
    pub subnet: String,
    /// The VPC.
    pub vpc: String,
    /// The availability zone.
    pub zone: String,
}

/// The addresses of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The primary IPv4 address; an interface of an IPv6-only subnet has none.
    pub primary: Option<Ipv4Addr>,
    /// All other addresses and prefixes, of both families.
    pub blocks: BTreeSet<IpNet>,
    /// Elastic IP addresses by private address.
    pub public: BTreeMap<Ipv4Addr, Public>,
}

impl Addresses {
    /// Addresses and prefixes of a family, without the primary address.
    pub fn of(&self, family: Family) -> impl Iterator<Item = &IpNet> {
        self.blocks
            .iter()
            .filter(move |net| Family::of(&net.addr()) == family)
    }

    /// Everything of both families, the primary address included.
    pub fn nets(&self) -> impl Iterator<Item = IpNet> + '_ {
        let primary = self.primary.map(|address| IpNet::from(IpAddr::V4(address)));
        primary.into_iter().chain(self.blocks.iter().copied())
    }

    /// Slots that a family takes.
    #[must_use]
    pub fn slots(&self, family: Family) -> usize {
        let primary = family == Family::V4 && self.primary.is_some();
        self.of(family).count() + usize::from(primary)
    }

    /// Reports if it is a private address by itself, not as part of a prefix.
    #[must_use]
    pub fn has(&self, address: Ipv4Addr) -> bool {
        self.nets()
            .any(|net| net == IpNet::from(IpAddr::V4(address)))
    }
}

/// An Elastic IP address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Public {
    /// The address.
    pub ip: Ipv4Addr,
    /// The allocation.
    pub allocation: String,
    /// The association.
    pub association: String,
}

/// An attachment of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The id.
    pub id: String,
    /// The instance.
    pub instance: String,
    /// The network card.
    pub card: u16,
    /// The device index.
    pub index: u16,
    /// The state.
    pub state: AttachState,
    /// The time of the call.
    pub since: Timestamp,
    /// Delete the interface with its instance.
    pub delete_on_termination: bool,
}

/// The state of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachState {
    /// The call was accepted.
    Attaching,
    /// The interface serves.
    Attached,
    /// The device is gone, the interface is not free yet.
    Detaching,
}

impl AttachState {
    /// The name in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Detaching => "detaching",
        }
    }
}

impl Eni {
    /// The state in answers.
    #[must_use]
    pub fn status(&self) -> &'static str {
        if self.is_pending {
            "pending"
        } else if self.attachment.is_some() {
            "in-use"
        } else {
            "available"
        }
    }
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The id.
    pub id: String,
    /// The type's name.
    pub kind: String,
    /// The VPC.
    pub vpc: String,
    /// The subnet of the primary interface.
    pub subnet: String,
    /// The availability zone.
    pub zone: String,
    /// The state.
    pub state: InstanceState,
    /// The time of its start.
    pub launched: Timestamp,
    /// The tags.
    pub tags: Tags,
    /// Interfaces of a card, where the cloud allows fewer than the type does.
    pub interface_limit: Option<u16>,
}

impl Instance {
    /// The limits of its type.
    #[must_use]
    pub fn limits(&self) -> Option<&'static Limits> {
        crate::settings::limits::of(&self.kind)
    }
}

/// The state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// It starts.
    Pending,
    /// It runs.
    Running,
    /// It is stopped.
    Stopped,
    /// It ends.
    ShuttingDown,
    /// It has ended.
    Terminated,
}

impl InstanceState {
    /// The code and the name in answers.
    #[must_use]
    pub fn wire(self) -> (u8, &'static str) {
        match self {
            Self::Pending => (0, "pending"),
            Self::Running => (16, "running"),
            Self::ShuttingDown => (32, "shutting-down"),
            Self::Terminated => (48, "terminated"),
            Self::Stopped => (80, "stopped"),
        }
    }
}

/// A subnet and its addresses.
#[derive(Clone, Debug)]
pub struct Subnet {
    /// The document's entry.
    pub spec: world::Subnet,
    pub(crate) ipv4: Option<Space>,
    pub(crate) ipv6: Option<Space>,
}

impl Subnet {
    pub(crate) fn space(&self, family: Family) -> Option<&Space> {
        match family {
            Family::V4 => self.ipv4.as_ref(),
            Family::V6 => self.ipv6.as_ref(),
        }
    }

    pub(crate) fn space_mut(&mut self, family: Family) -> Option<&mut Space> {
        match family {
            Family::V4 => self.ipv4.as_mut(),
            Family::V6 => self.ipv6.as_mut(),
        }
    }

    pub(crate) fn give_back(&mut self, net: &IpNet) {
        if let Some(space) = self.space_mut(Family::of(&net.addr())) {
            space.give_back(net);
        }
    }
}

/// An Elastic IP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// The allocation's id.
    pub id: String,
    /// The address.
    pub ip: Ipv4Addr,
    /// The tags.
    pub tags: Tags,
    /// The association: its id, the interface and the private address.
    pub association: Option<(String, String, Ipv4Addr)>,
}
