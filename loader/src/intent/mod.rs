//! The intended state of the node: the sources, merged and checked, before any of it is resolved
//! against the kernel.

pub mod masquerade;
mod node;
pub mod pod_routes;
mod problem;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use api::ids::{EndpointId, NetnsId, Owner, PodRef};
use ipam::{Lease, Time};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::intent::masquerade::{DEFAULT_POOL, Policy};

pub use self::node::{Eni, Node, NodeAddresses, OtherEni, StaticAddress, Unfollowed};
pub use self::problem::Problem;
pub use self::settings::{ClusterServices, HostSettings, Services, Settings};

/// One pod attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its owner.
    pub owner: Owner,
    /// The pod's network namespace, as a path.
    pub netns: PathBuf,
    /// Its addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// MTU of its interface, in bytes.
    pub mtu: u32,
    /// Its data that the kernel does not need.
    pub about: EndpointMeta,
}

/// Data of an attachment that the kernel does not need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EndpointMeta {
    /// Name of the CNI network that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Time of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// Name of the host-side device, where it is not that of the endpoint's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The network namespace to which the path led at the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<NetnsId>,
    /// From where its addresses were given. An address without a lease was given by an agent that
    /// allocated none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<Lease>,
}

impl Endpoint {
    /// The endpoint's id, which names its devices.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        EndpointId::of(&self.owner)
    }

    /// True if its record is lost. Its owner is unknown, and only its kernel objects are known.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        EndpointId::is_unknown(&self.owner)
    }
}

/// Everything that the kernel is to be brought to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The node and its ENIs.
    pub node: Node,
    /// The endpoints by id.
    pub endpoints: BTreeMap<EndpointId, Endpoint>,
    /// Settings.
    pub settings: Settings,
    /// The policy of pool documents and ip-masq-agent files.
    pub policy: Policy,
}

impl Intent {
    /// The blocks of plain pools with the names of these: pools that no ENI backs. None of them is
    /// within the VPC, whose addresses are those of ENIs, of this node or another: also when an ENI
    /// went, and its block is still listed.
    pub fn plain_blocks(&self) -> impl Iterator<Item = (IpNet, &str)> {
        let enis = || self.node.enis.values();
        let of_vpc = move |block: IpNet| {
            let mut cidrs = enis().flat_map(|eni| eni.blocks.iter().chain(&eni.vpc_cidrs));
            let mut hosts = self.node.addresses.internal.iter();
            cidrs.any(|other| other.contains(&block) || block.contains(other))
                || hosts.any(|host| block.contains(host))
        };
        let pools = self.node.pools.iter();
        pools
            .filter(move |(block, pool)| self.is_plain(pool) && !of_vpc(**block))
            .map(|(block, pool)| (*block, pool.as_str()))
    }

    /// The plain pool that an address is of.
    #[must_use]
    pub fn plain_pool_of(&self, address: IpAddr) -> Option<&str> {
        let mut blocks = self.plain_blocks();
        let block = blocks.find(|(block, _)| block.contains(&address));
        block.map(|(_, pool)| pool)
    }

    /// True if a pool's addresses belong to no ENI. A pool that is bound to ENIs stays theirs when
    /// they go: its pods' addresses leave by no other ENI.
    fn is_plain(&self, pool: &str) -> bool {
        let documents = self.policy.pools.as_deref();
        pool != self.settings.default_pool
            && !documents.is_some_and(|documents| documents.is_bound(pool))
    }

    /// The pool that gave an endpoint's address; none where it came with its request.
    #[must_use]
    pub fn given_by<'a>(&'a self, endpoint: &'a Endpoint, address: IpAddr) -> Option<&'a str> {
        let mut leases = endpoint.about.leases.iter();
        let lease = leases.find(|lease| lease.address == address)?;
        lease.pool.as_deref()
    }

    /// The pool whose masquerade policy applies to an endpoint's address: the one of its lease. For
    /// the default pool's addresses the document takes precedence: it can assign a part of an ENI's
    /// blocks to another pool, whose policy then applies.
    #[must_use]
    pub fn policy_of<'a>(&'a self, endpoint: &'a Endpoint, address: IpAddr) -> &'a str {
        self.policy_by(self.given_by(endpoint, address), address)
    }

    /// The pool by whose masquerade policy an address leaves that a pool gave: see
    /// [`policy_of`](Self::policy_of).
    #[must_use]
    pub fn policy_by<'a>(&'a self, pool: Option<&'a str>, address: IpAddr) -> &'a str {
        pool.filter(|pool| *pool != DEFAULT_POOL)
            .unwrap_or_else(|| self.node.pool_of(address))
    }
}
