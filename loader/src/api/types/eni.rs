//! ENIs.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use crate::types::{EniNumber, MacAddr};
use crate::view::Readiness;

/// An ENI, as `GET /v1/enis` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EniStatus {
    /// Device index of the attachment.
    pub number: EniNumber,
    /// The cloud's id.
    pub id: String,
    /// MAC of the device.
    pub mac: MacAddr,
    /// Name of the device, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// MTU of the device, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The ENI's own address.
    pub primary_address: Ipv4Addr,
    /// The subnet that the ENI is in.
    pub subnet: Ipv4Net,
    /// Number of its routing table.
    pub table: u32,
    /// What the VPC delivers to it for pods.
    pub blocks: Vec<IpNet>,
    /// Endpoint addresses that it owns.
    pub addresses_in_use: usize,
    /// Whether it can be used.
    pub readiness: Readiness,
    /// What is worth knowing about it, and does no harm.
    pub notes: Vec<String>,
}
