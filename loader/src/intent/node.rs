//! The node and its ENIs, as the node document has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use api::ids::{EniNumber, MacAddr};
use api::types::Readiness;
use ipam::Family;
use ipam::node::AllocatedPool;
use ipnet::{IpNet, Ipv4Net};
use kubernetes::node::crd_mode::FlatPool;
use serde::{Deserialize, Serialize};

use super::Problem;
use super::masquerade::DEFAULT_POOL;
use crate::constants;

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
    /// The node's addresses.
    pub addresses: NodeAddresses,
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
    /// The parts of the document that are not in force.
    pub unfollowed: Unfollowed,
}

/// The addresses of a node, in the document's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// Those within the cluster.
    pub internal: Vec<IpAddr>,
    /// Those at which the outside sees the node.
    pub external: Vec<IpAddr>,
}

impl NodeAddresses {
    /// The first internal address of a family: what the host speaks to pods with.
    #[must_use]
    pub fn first_internal(&self, family: Family) -> Option<IpAddr> {
        first(&self.internal, family)
    }

    /// The first external address of a family.
    #[must_use]
    pub fn first_external(&self, family: Family) -> Option<IpAddr> {
        first(&self.external, family)
    }
}

fn first(addresses: &[IpAddr], family: Family) -> Option<IpAddr> {
    let mut all = addresses.iter().copied();
    all.find(|address| Family::of(*address) == family)
}

/// The parts of a node's document that are not in force; the rest of it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unfollowed {
    /// Notes for the status: fields that are not followed, and why.
    pub notes: Vec<String>,
    /// The refused parts.
    pub refused: Vec<Problem>,
}

impl Unfollowed {
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
    /// The pool that an address is of: that of the longest block which contains it.
    #[must_use]
    pub fn pool_of(&self, address: IpAddr) -> &str {
        let containing = self.pools.iter().filter(|(net, _)| net.contains(&address));
        containing
            .max_by_key(|(net, _)| net.prefix_len())
            .map_or(DEFAULT_POOL, |(_, pool)| pool)
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
