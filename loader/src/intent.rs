//! What the node should be: the sources, merged and checked, before any of it is resolved against
//! the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use datapath_common::config::PortSlice;
use datapath_common::mark::MarkLayout;
use ipnet::{IpNet, Ipv4Net};

use crate::masquerade::{DEFAULT_POOL, MasqueradeSettings, Policy};
use crate::numbers;
use crate::types::{EndpointId, EniNumber, MacAddr, Owner};

/// One ENI of the node, as the node document has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eni {
    /// The cloud's id (`eni-…`).
    pub id: String,
    /// Device index of the attachment.
    pub number: EniNumber,
    /// MAC of the device.
    pub mac: MacAddr,
    /// The ENI's own address.
    pub primary_address: Ipv4Addr,
    /// The public address that is mapped to it, if there is one.
    pub public_address: Option<Ipv4Addr>,
    /// The subnet that the ENI is in.
    pub subnet: Ipv4Net,
    /// CIDRs of the VPC, the primary one first.
    pub vpc_cidrs: Vec<IpNet>,
    /// What the VPC delivers to this ENI for pods: /32 and /128 addresses, /28 and /80 prefixes;
    /// with `use-primary-address` the primary address too. Disjoint.
    pub blocks: BTreeSet<IpNet>,
    /// Whether pods must not use this ENI, and why (`first-interface-index`,
    /// `exclude-interface-tags`). Such an ENI is left to its owner, the primary excepted.
    pub excluded: Option<String>,
    /// Whether the primary address is a pod's to have, and so is not put on the device.
    pub use_primary_address: bool,
}

impl Eni {
    /// The VPC's router as this ENI sees it: the subnet's first address after the network's, or
    /// `fe80:ec2::1`.
    #[must_use]
    pub fn gateway(&self, of: Family) -> IpAddr {
        match of {
            Family::V4 => {
                let network = u32::from(self.subnet.network());
                Ipv4Addr::from(network.saturating_add(1)).into()
            }
            Family::V6 => numbers::GATEWAY_V6.into(),
        }
    }

    /// Number of the ENI's routing table.
    #[must_use]
    pub fn table(&self) -> u32 {
        numbers::TABLE_ENI_BASE + u32::from(self.number.0)
    }

    /// Whether the address is one that the VPC delivers to this ENI for pods.
    #[must_use]
    pub fn owns(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| block.contains(&address))
    }
}

/// An address family. Whatever holds for one holds for the other, so code takes the family as a
/// value and is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    /// The length of a single address's prefix.
    #[must_use]
    pub fn host_length(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The prefix that holds everything.
    #[must_use]
    pub fn default_route(self) -> IpNet {
        match self {
            Self::V4 => IpNet::V4(Ipv4Net::default()),
            Self::V6 => IpNet::V6(ipnet::Ipv6Net::default()),
        }
    }
}

/// The node, as its document has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name of the Kubernetes node.
    pub name: String,
    /// The node's internal addresses, in the document's order.
    pub addresses: Vec<IpAddr>,
    /// The node's external addresses, in the document's order.
    pub external_addresses: Vec<IpAddr>,
    /// The pools that the node has blocks of, by block.
    pub pools: BTreeMap<IpNet, String>,
    /// The ENIs by number.
    pub enis: BTreeMap<EniNumber, Eni>,
    /// What a user may wonder about, for the status: fields that are not followed, and why.
    pub notes: Vec<String>,
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
    /// Whose it is.
    pub owner: Owner,
    /// The pod's network namespace, as a path.
    pub netns: PathBuf,
    /// Its addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// MTU of its interface, in bytes.
    pub mtu: u32,
}

impl Endpoint {
    /// The endpoint's id, which names its devices.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        EndpointId::of(&self.owner)
    }
}

/// Settings that shape what we put into the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Layout of our part of the packet mark.
    pub mark: MarkLayout,
    /// Routing protocol number that our routes and rules carry (2 = kernel).
    pub protocol: u8,
    /// Device of the primary ENI where the node document does not tell.
    pub primary_device: Option<String>,
    /// Service destinations: CIDRs, and external or load balancer addresses.
    pub services: BTreeSet<IpNet>,
    /// Addresses that the host's stack answers for though no device of the host has them.
    pub host_addresses: BTreeSet<IpAddr>,
    /// What is masqueraded, and how.
    pub masquerade: MasqueradeSettings,
    /// Whether flows are noted that the host's stack carries, because service NAT there may have
    /// translated them.
    pub service_nat: bool,
    /// The ports that translation may use; the host's automatic ports keep off them.
    pub ports: [PortSlice; PortSlice::MAX],
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
    /// What pool documents and ip-masq-agent files say.
    pub policy: Policy,
}
