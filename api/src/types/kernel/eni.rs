//! ENIs.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use crate::ids::{EniNumber, MacAddr};
use crate::types::Readiness;

/// An ENI, as `GET /v1/enis` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EniStatus {
    /// The agent's number for it; none where nothing is set up for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<EniNumber>,
    /// Device index of the attachment, where the node document has a usable one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_index: Option<u32>,
    /// The cloud's id.
    pub id: String,
    /// MAC of the device, where the node document has a usable one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Name of the device, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// MTU of the device, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The ENI's own IPv4 address, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_address: Option<Ipv4Addr>,
    /// The IPv4 CIDR of the subnet that the ENI is in, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<Ipv4Net>,
    /// Number of its routing table; none where nothing is set up for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Blocks that the VPC delivers to it for pods.
    pub blocks: Vec<IpNet>,
    /// Endpoint addresses that it owns.
    pub addresses_in_use: usize,
    /// Readiness of the ENI.
    pub readiness: Readiness,
    /// Harmless notes.
    pub notes: Vec<String>,
}
