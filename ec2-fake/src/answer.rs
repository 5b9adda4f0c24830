//! Answers as values.

use std::sync::Arc;

use ipnet::IpNet;

use crate::cloud::{Elastic, Eni, Instance};
use crate::family::Family;
use crate::settings::limits::Limits;
use crate::world;

/// The answer of a call that succeeded.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A page of a listing.
    Page(Page),
    /// A new interface.
    Created {
        /// The interface.
        eni: Arc<Eni>,
        /// The client token.
        token: Option<String>,
    },
    /// A new attachment.
    Attached {
        /// The attachment's id.
        attachment: String,
        /// The network card.
        card: u16,
    },
    /// Addresses that an interface was given.
    Assigned {
        /// The family.
        family: Family,
        /// The interface.
        eni: String,
        /// The addresses and prefixes.
        blocks: Vec<IpNet>,
    },
    /// Addresses that were taken from an interface.
    Unassigned {
        /// The family.
        family: Family,
        /// The interface.
        eni: String,
        /// The addresses and prefixes.
        blocks: Vec<IpNet>,
    },
    /// A new association.
    Associated(String),
    /// Nothing but success.
    Done,
}

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Page {
    /// The items.
    pub items: Vec<Item>,
    /// The token of the next page.
    pub next: Option<String>,
}

/// An item of a listing.
#[derive(Clone, Debug)]
pub enum Item {
    /// An Elastic IP address, and the interface that it is associated with.
    Address(Elastic, Option<Arc<Eni>>),
    /// A security group.
    Group(world::Group),
    /// An instance and its interfaces.
    Instance(Arc<Instance>, Vec<Arc<Eni>>),
    /// An interface.
    Interface(Arc<Eni>),
    /// A route table.
    RouteTable(world::RouteTable),
    /// A subnet and its free IPv4 addresses.
    Subnet(world::Subnet, u128),
    /// A tag.
    Tag {
        /// The resource.
        resource: String,
        /// The kind of the resource, such as `subnet`.
        kind: &'static str,
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// An instance type.
    Type(&'static Limits),
    /// A VPC.
    Vpc(world::Vpc),
}
