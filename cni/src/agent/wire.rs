//! Messages on the agent's socket, as far as the plugin needs them.
//!
//! The agent's own types are in `api/src/types`. These are separate, so that the plugin does not
//! link the agent's libraries, and so that it ignores the additions of a later agent. Recorded
//! requests and answers (`cni/tests/transcripts`) hold both to one contract. An optional field is
//! sent only when it has a value: the agent refuses unknown fields.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::request::owner::Owner;

/// The answer to a garbage collection, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct GcResult {
    /// The owners that are the agent itself.
    #[serde(default)]
    pub agent: Vec<Owner>,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// As configurations and the socket write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }

    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }
}

/// The pod, for logs, lists and messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// Its namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its id in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Requested addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// Exactly these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// One of each of these families; none for what the agent's configuration says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<Family>,
    /// The pool of each family; none for the agent's default.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<Family, String>,
}

/// The body of `PUT /v1/endpoints` and, without `netns`, of `PUT /v1/addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Request<'a> {
    /// Owner of the endpoint or lease.
    pub owner: &'a Owner,
    /// The pod's network namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<&'a Path>,
    /// The requested addresses.
    #[serde(flatten)]
    pub wanted: &'a Wanted,
    /// Name of the CNI network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<&'a str>,
    /// The pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<&'a Pod>,
}

/// An address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AttachedAddress {
    /// The address.
    pub address: IpAddr,
    /// The link-local gateway that the pod's default route has.
    pub pod_gateway: IpAddr,
}

/// An endpoint that works: the answer to `PUT /v1/endpoints`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Attachment {
    /// The pod's network namespace.
    pub netns: PathBuf,
    /// Name of the host-side device.
    pub host_device: String,
    /// MAC of the host-side device.
    pub host_mac: String,
    /// MAC of the pod's interface.
    pub pod_mac: String,
    /// MTU of the pod's interface, in bytes.
    pub mtu: u32,
    /// Its addresses.
    pub addresses: Vec<AttachedAddress>,
}

/// The answer to `GET /v1/endpoints/{container-id}/{interface}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Inspection {
    /// The attachment.
    pub attachment: Attachment,
    /// The differences from the wanted state.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// An address that is leased without an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LeasedAddress {
    /// The address.
    pub address: IpAddr,
    /// The VPC's router as the address's ENI sees it; an address of a plain pool has no ENI.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// The subnet that the ENI is in.
    #[serde(default)]
    pub subnet: Option<IpNet>,
}

/// The answer to `PUT /v1/addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Leased {
    /// The addresses.
    pub addresses: Vec<LeasedAddress>,
}

/// The answer to `GET /v1/addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Leases {
    /// The leases.
    pub leases: Vec<Lease>,
}

/// A lease in a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Lease {
    /// Owner of the lease.
    pub owner: Owner,
    /// The address.
    pub address: IpAddr,
}

/// The body of `POST /v1/endpoints/gc`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GcRequest<'a> {
    /// Name of the CNI network.
    pub network: &'a str,
    /// The owners that the runtime knows.
    pub valid: &'a [Owner],
}

/// Part of the answer to `GET /v1/status` that shows the readiness of an agent without
/// `GET /v1/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// Health of the agent.
    pub health: Health,
}

/// Health of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Health {
    /// `ready`, `degraded` or `not-ready`.
    pub state: String,
    /// Reasons why it is not ready.
    #[serde(default)]
    pub reasons: Vec<String>,
}

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ErrorBody {
    /// The error.
    pub error: Refusal,
    /// The versions that the agent speaks, where the path was not understood.
    #[serde(default)]
    pub supported_versions: Vec<String>,
}

/// Refusal of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Refusal {
    /// For programs; a later agent may have more of them.
    pub code: String,
    /// For people.
    pub message: String,
    /// The field of the request that is to blame.
    #[serde(default)]
    pub field: Option<String>,
    /// True if the same may work later; older agents do not say.
    #[serde(default)]
    pub retry: bool,
}
