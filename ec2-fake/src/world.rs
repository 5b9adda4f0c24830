//! The document that a cloud begins with.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use serde::Deserialize;

use crate::fault::Fault;
use crate::iam::Policy;
use crate::settings::Settings;

/// Tags of an object.
pub type Tags = BTreeMap<String, String>;

/// Initial state of a cloud.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct World {
    /// Behaviour of the cloud.
    pub settings: Settings,
    /// The VPCs.
    pub vpcs: Vec<Vpc>,
    /// The subnets.
    pub subnets: Vec<Subnet>,
    /// The route tables.
    pub route_tables: Vec<RouteTable>,
    /// The security groups.
    pub groups: Vec<Group>,
    /// The instances.
    pub instances: Vec<Instance>,
    /// Elastic IP addresses.
    pub addresses: Vec<Elastic>,
    /// Callers with rights, by access key.
    pub principals: BTreeMap<String, Principal>,
    /// Faults that wait for their calls.
    pub faults: Vec<Fault>,
}

/// A VPC.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vpc {
    /// The id.
    pub id: String,
    /// The CIDRs; the first one is the primary one.
    pub cidrs: Vec<IpNet>,
    /// The tags.
    #[serde(default)]
    pub tags: Tags,
}

/// A subnet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    /// The id.
    pub id: String,
    /// The VPC.
    pub vpc: String,
    /// The availability zone.
    pub zone: String,
    /// The IPv4 CIDR.
    #[serde(default)]
    pub ipv4: Option<IpNet>,
    /// The IPv6 CIDR.
    #[serde(default)]
    pub ipv6: Option<IpNet>,
    /// CIDR reservations of type `prefix`.
    #[serde(default)]
    pub reservations: Vec<IpNet>,
    /// Addresses that something outside of this document holds.
    #[serde(default)]
    pub taken: Vec<IpAddr>,
    /// The tags.
    #[serde(default)]
    pub tags: Tags,
}

/// A route table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTable {
    /// The id.
    pub id: String,
    /// The VPC.
    pub vpc: String,
    /// Set for the VPC's main table.
    #[serde(default)]
    pub main: bool,
    /// The subnets that are associated with it.
    #[serde(default)]
    pub subnets: Vec<String>,
    /// Gateways by destination.
    #[serde(default)]
    pub routes: BTreeMap<IpNet, String>,
    /// The tags.
    #[serde(default)]
    pub tags: Tags,
}

/// A security group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The id.
    pub id: String,
    /// The VPC.
    pub vpc: String,
    /// The name.
    pub name: String,
    /// The tags.
    #[serde(default)]
    pub tags: Tags,
}

/// An instance; it has a primary interface in its subnet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// The id.
    pub id: String,
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The subnet of the primary interface.
    pub subnet: String,
    /// The groups of the primary interface.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The address of the primary interface; a free one when unset.
    #[serde(default)]
    pub address: Option<Ipv4Addr>,
    /// Interfaces of a card, where the cloud allows fewer than the type does.
    #[serde(default)]
    pub interface_limit: Option<u16>,
    /// The tags.
    #[serde(default)]
    pub tags: Tags,
}

/// An Elastic IP address.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elastic {
    /// The allocation's id.
    pub id: String,
    /// The address.
    pub ip: Ipv4Addr,
    /// The tags.
    #[serde(default)]
    pub tags: Tags,
}

/// A caller with an access key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Principal {
    /// The secret key.
    pub secret: String,
    /// The policy; everything is allowed without one.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// Set when the credentials have expired.
    #[serde(default)]
    pub expired: bool,
}
