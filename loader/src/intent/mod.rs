//! The intended state of the node: the sources, merged and checked, before any of it is resolved
//! against the kernel.

pub mod masquerade;
pub mod pod_routes;
mod problem;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use api::ids::PodRef;
use api::ids::{EndpointId, EniNumber, MacAddr, NetnsId, Owner};
use api::types::Readiness;
use datapath_common::config::PortSlice;
use datapath_common::mark::MarkLayout;
use ipam::Family;
use ipam::node::AllocatedPool;
use ipam::{Lease, Time};
use ipnet::{IpNet, Ipv4Net};
use kubernetes::node::crd_mode::FlatPool;
use serde::{Deserialize, Serialize};

use crate::constants;
use crate::intent::masquerade::{DEFAULT_POOL, MasqueradeSettings, Policy};

pub use self::problem::Problem;

/// One ENI of the node, as the node document has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Eni {
    /// The cloud's id (`eni-…`).
    pub id: String,
    /// The agent's number for it, which its routing table and mark follow from.
    pub number: EniNumber,
    /// Device index of the attachment; 0 is the primary's.
    pub device_index: u32,
    /// MAC of the device.
    pub mac: MacAddr,
    /// The ENI's own IPv4 address; none where it is in a subnet of IPv6 alone.
    pub primary_address: Option<Ipv4Addr>,
    /// The public address that is mapped to it, if there is one.
    pub public_address: Option<Ipv4Addr>,
    /// The IPv4 CIDR of the subnet that the ENI is in; there is one where there is an address.
    pub subnet: Option<Ipv4Net>,
    /// The subnet's id (`subnet-…`); empty where the document has none.
    pub subnet_id: String,
    /// The ENI's tags.
    pub tags: BTreeMap<String, String>,
    /// CIDRs of the VPC, the primary one first.
    pub vpc_cidrs: Vec<IpNet>,
    /// The blocks that the VPC delivers to this ENI for pods: /32 and /128 addresses, /28 and /80
    /// prefixes; with `use-primary-address` the primary address too. Disjoint.
    pub blocks: BTreeSet<IpNet>,
    /// The blocks that the present document refuses and that running pods use. No further address
    /// of them is allocated.
    #[serde(skip)]
    pub kept: BTreeSet<IpNet>,
    /// The reason why pods must not use this ENI (`first-interface-index`,
    /// `exclude-interface-tags`), if any. Such an ENI is left to its owner, the primary excepted.
    pub excluded: Option<String>,
    /// Why `exclude-interface-tags` excludes it, if so: what a pool that is bound to it overrides.
    pub excluded_by_tags: Option<String>,
    /// The pools that pool documents bind to it.
    pub bound_to: Vec<String>,
    /// True if pods may have the primary address, so that the device does not get it.
    pub use_primary_address: bool,
    /// Reason for which this is an earlier form of the entry, if so: the present one is unusable,
    /// or the ENI is no longer for pods. Its objects stay, and no new pod gets an address.
    pub stale: Option<String>,
}

impl Eni {
    /// The VPC's router as this ENI sees it: the subnet's first address after the network's, or
    /// `fe80:ec2::1`. An ENI without IPv4 has none for it.
    #[must_use]
    pub fn gateway(&self, of: Family) -> Option<IpAddr> {
        match of {
            Family::V4 => self.subnet.map(|subnet| {
                let network = u32::from(subnet.network());
                Ipv4Addr::from(network.saturating_add(1)).into()
            }),
            Family::V6 => Some(constants::GATEWAY_V6.into()),
        }
    }

    /// The ENI's own IPv4 address.
    #[must_use]
    pub fn own_address(&self) -> Option<IpAddr> {
        self.primary_address.map(IpAddr::V4)
    }

    /// True if it has anything of IPv4: an ENI of a subnet of IPv6 alone has not.
    #[must_use]
    pub fn has_ipv4(&self) -> bool {
        self.primary_address.is_some() || self.blocks.iter().any(|block| block.addr().is_ipv4())
    }

    /// Number of the ENI's routing table.
    #[must_use]
    pub fn table(&self) -> u32 {
        constants::TABLE_ENI_BASE + u32::from(self.number.0)
    }

    /// True if the VPC delivers the address to this ENI for pods.
    #[must_use]
    pub fn owns(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| block.contains(&address))
    }
}

/// The node, as its document has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name of the Kubernetes node.
    pub name: String,
    /// Id of the instance that the document says it is of (`i-…`).
    pub instance: Option<String>,
    /// The node's internal addresses, in the document's order.
    pub addresses: Vec<IpAddr>,
    /// The node's external addresses, in the document's order.
    pub external_addresses: Vec<IpAddr>,
    /// The pools that the node has blocks of, by block.
    pub pools: BTreeMap<IpNet, String>,
    /// The pools as the document lists them.
    pub allocated: Vec<AllocatedPool>,
    /// Number of addresses of the default pool to keep in store, if the document has one.
    pub pre_allocate: Option<u32>,
    /// The node's single addresses, if these count and not the ENIs' blocks.
    pub flat: Option<FlatPool>,
    /// True if the operator takes blocks back only for the object's current version
    /// (`kubernetes::node::marks`).
    pub is_versioned: bool,
    /// State of the public address that the node should have.
    pub static_address: StaticAddress,
    /// The ENIs by number.
    pub enis: BTreeMap<EniNumber, Eni>,
    /// The other entries of the document's ENIs: what cannot be used, and what needs no number.
    pub others: Vec<OtherEni>,
    /// Notes for the status: fields that are not followed, and why.
    pub notes: Vec<String>,
    /// The refused parts of the document; the rest of it is in force.
    pub refused: Vec<Problem>,
}

/// An entry of the document's ENIs that has no number: nothing is set up for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherEni {
    /// The cloud's id, which is the entry's key.
    pub id: String,
    /// Device index of the attachment, where it can be read.
    pub device_index: Option<u32>,
    /// MAC of the device, where it can be read.
    pub mac: Option<MacAddr>,
    /// Why it has no number.
    pub readiness: Readiness,
    /// The ENI, where there is nothing wrong with the entry itself.
    pub whole: Option<Box<Eni>>,
}

/// The public address that a node is to have by its tags (`spec.ipam.static-ip-tags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaticAddress {
    /// None is requested.
    #[default]
    NotAsked,
    /// The operator has not assigned it yet. Cilium's agent gives no address before.
    Awaited,
    /// It is there.
    Assigned,
}

impl Node {
    /// The node's first internal address of a family: what the host speaks to pods with.
    #[must_use]
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|a| Family::of(*a) == family)
    }

    /// The node's first external address of a family.
    #[must_use]
    pub fn external_address(&self, family: Family) -> Option<IpAddr> {
        let mut all = self.external_addresses.iter().copied();
        all.find(|a| Family::of(*a) == family)
    }

    /// The pool that an address is of: that of the longest block which contains it.
    #[must_use]
    pub fn pool_of(&self, address: IpAddr) -> &str {
        let containing = self.pools.iter().filter(|(net, _)| net.contains(&address));
        containing
            .max_by_key(|(net, _)| net.prefix_len())
            .map_or(DEFAULT_POOL, |(_, pool)| pool)
    }

    /// True if something of an ENI's entry is refused.
    #[must_use]
    pub fn refuses_of(&self, id: &str) -> bool {
        let of_entry = |path: &str| {
            let rest = path.strip_prefix("status.eni.enis.");
            let rest = rest.and_then(|rest| rest.strip_prefix(id));
            // Of very many problems not all are listed.
            rest.is_some_and(|rest| rest.starts_with('.')) || path == "document"
        };
        self.refused.iter().any(|problem| of_entry(&problem.path))
    }

    /// MAC of the primary ENI's device, if the document has it.
    #[must_use]
    pub fn primary_mac(&self) -> Option<MacAddr> {
        let listed = self.enis.get(&EniNumber::PRIMARY).map(|eni| eni.mac);
        let mut others = self.others.iter();
        listed.or_else(|| {
            let primary = others.find(|eni| eni.device_index == Some(0))?;
            primary.mac
        })
    }

    /// The ENI that owns an address for pods; an excluded ENI owns none.
    #[must_use]
    pub fn owner_of(&self, address: IpAddr) -> Option<&Eni> {
        self.enis
            .values()
            .find(|eni| eni.excluded.is_none() && eni.owns(address))
    }
}

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

/// Settings that shape what we put into the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Layout of our part of the packet mark.
    pub mark: MarkLayout,
    /// Routing protocol number that our routes and rules carry (2 = kernel).
    pub protocol: u8,
    /// Prefix of the names of pods' host-side devices, where they follow from the pod's name.
    pub device_prefix: Option<String>,
    /// Device of the primary ENI if the node document has none.
    pub primary_device: Option<String>,
    /// MTU of what pods send out of the VPC, in bytes; `None` for that of their interface.
    pub internet_mtu: Option<u32>,
    /// Service destinations that the configuration names: CIDRs, and external or load balancer
    /// addresses.
    pub services: BTreeSet<IpNet>,
    /// Those of the cluster.
    pub cluster_services: ClusterServices,
    /// Configured networks behind the host, in addition to those that its routes reach.
    pub host_cidrs: BTreeSet<IpNet>,
    /// The agent's own addresses that the host's stack answers for.
    pub ingress: BTreeSet<IpAddr>,
    /// Addresses that the host's stack answers for though no device of the host has them.
    pub host_addresses: BTreeSet<IpAddr>,
    /// The settings of masquerade.
    pub masquerade: MasqueradeSettings,
    /// The pool of ENIs that no other pool is bound to.
    pub default_pool: String,
    /// True if the VPC routes the addresses of plain pools, so that they may leave untranslated.
    pub plain_is_native: bool,
    /// True if flows that the host's stack carries are recorded, because service NAT may have
    /// translated them.
    pub service_nat: bool,
    /// The ports that translation may use; the host's automatic ports keep off them.
    pub ports: [PortSlice; PortSlice::MAX],
}

/// The addresses of a cluster's services. While one is unknown, the datapath's entries stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterServices {
    /// CIDRs of services.
    pub cidrs: Option<BTreeSet<IpNet>>,
    /// External and load balancer addresses.
    pub addresses: Option<BTreeSet<IpAddr>>,
}

impl ClusterServices {
    /// State without a cluster.
    #[must_use]
    pub fn none() -> Self {
        Self {
            cidrs: Some(BTreeSet::new()),
            addresses: Some(BTreeSet::new()),
        }
    }

    /// True if everything is known.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.cidrs.is_some() && self.addresses.is_some()
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
            let mut hosts = self.node.addresses.iter();
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
