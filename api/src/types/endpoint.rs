//! Endpoints: requested, allocated, listed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use ipam::Family;
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Deserializer, Serialize};

use crate::ids::PodRef;
use crate::ids::{EniNumber, MacAddr, Owner};
use crate::types::Readiness;

/// The request for an endpoint: body of `PUT /v1/endpoints`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    deny_unknown_fields,
    expecting = "an object with owner and netns"
)]
pub struct AddEndpoint {
    /// Owner of the endpoint.
    pub owner: Owner,
    /// The pod's network namespace, as an absolute path.
    pub netns: PathBuf,
    /// Its addresses: one IPv4 address, one IPv6 address or both. Each has its own owner ENI,
    /// which may differ. Without any, the agent allocates them.
    #[serde(
        default,
        deserialize_with = "addresses",
        skip_serializing_if = "Option::is_none"
    )]
    pub addresses: Option<Vec<IpAddr>>,
    /// The families to allocate addresses of; without any, those of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<Family>,
    /// The pools to allocate from; without one for a family, the default pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<Family, String>,
    /// Name of the CNI network: what a garbage collection is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The pod, for logs, lists and errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
}

/// Reads addresses, so that the error names the wrong one and what is allowed.
pub(super) fn addresses<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<IpAddr>>, D::Error> {
    let texts = Vec::<AddressText>::deserialize(deserializer)?;
    Ok(Some(texts.into_iter().map(|AddressText(ip)| ip).collect()))
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct AddressText(IpAddr);

impl TryFrom<String> for AddressText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_not_an_address| {
            format!(
                "{text:?} is not an address: an IPv4 or IPv6 address without a prefix length or \
                 zone is allowed, such as 10.0.1.20"
            )
        })
    }
}

/// An ENI, as far as a user of its addresses needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EniRef {
    /// Device index of the attachment.
    pub number: EniNumber,
    /// The cloud's id.
    pub id: String,
    /// MAC of the device.
    pub mac: MacAddr,
}

/// The allocation result of one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Allocation {
    /// The address.
    pub address: IpAddr,
    /// The ENI that owns it; none of an address of a plain pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniRef>,
    /// The VPC's router as that ENI sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The subnet that the ENI is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<Ipv4Net>,
    /// CIDRs of the VPC, the primary one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vpc_cidrs: Vec<IpNet>,
    /// The link-local gateway that the pod's default route has.
    pub pod_gateway: IpAddr,
    /// The pool that gave it; absent where it came with the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The pool by whose masquerade policy it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// True if packets from the address keep their source when they leave the VPC; absent while
    /// that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_masquerade: Option<bool>,
}

/// An endpoint that works: the answer to `PUT /v1/endpoints`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Attachment {
    /// Owner of the endpoint.
    pub owner: Owner,
    /// The pod's network namespace.
    pub netns: PathBuf,
    /// Name of the host-side device.
    pub host_device: String,
    /// MAC of the host-side device.
    pub host_mac: MacAddr,
    /// MAC of the pod's interface.
    pub pod_mac: MacAddr,
    /// MTU of the pod's interface, in bytes.
    pub mtu: u32,
    /// The allocation result of each address.
    pub addresses: Vec<Allocation>,
}

/// An address of a listed endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AddressStatus {
    /// The address.
    pub address: IpAddr,
    /// Number of the ENI that owns it; absent when none does any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniNumber>,
    /// The pool that gave it; absent where it came with the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The pool by whose masquerade policy it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// State of an endpoint in the kernel, freshly read: the answer to
/// `GET /v1/endpoints/{container-id}/{interface}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EndpointCheck {
    /// Attachment that the endpoint was made as.
    pub attachment: Attachment,
    /// Differences from the desired state; nothing was repaired.
    pub problems: Vec<String>,
}

/// Attachments that a container runtime knows: body of `POST /v1/endpoints/gc`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    deny_unknown_fields,
    expecting = "an object with network and valid"
)]
pub struct GcRequest {
    /// Name of the CNI network; endpoints and addresses of other networks are left alone.
    pub network: String,
    /// The owners that are alive.
    pub valid: Vec<Owner>,
}

/// Result of a garbage collection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GcResult {
    /// Owners whose endpoints and addresses were removed.
    pub removed: Vec<Owner>,
    /// Owners that were kept though the runtime does not know them.
    pub kept: Vec<GcKept>,
    /// Owners of the agent's own addresses, which no runtime knows.
    ///
    /// An IPAM plugin has to leave these addresses alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agent: Vec<Owner>,
}

/// An owner that a garbage collection has kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GcKept {
    /// The owner.
    pub owner: Owner,
    /// Reason.
    pub reason: String,
}

/// An endpoint, as `GET /v1/endpoints` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EndpointStatus {
    /// Owner of the endpoint.
    pub owner: Owner,
    /// The pod's network namespace.
    pub netns: PathBuf,
    /// Name of the host-side device.
    pub host_device: String,
    /// MTU of the pod's interface, in bytes.
    pub mtu: u32,
    /// The pod, if the request named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// The CNI network, if the request named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Its addresses.
    pub addresses: Vec<AddressStatus>,
    /// True if its record is lost: then its owner is `?` and the name of its device, and its
    /// namespace is empty where it was not found.
    #[serde(default)]
    pub orphaned: bool,
    /// Readiness of the endpoint.
    pub readiness: Readiness,
}
