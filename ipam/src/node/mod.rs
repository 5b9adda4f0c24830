//! Pods on a node: the addresses in a `CiliumNode`, as plain values, and the resource kind based on
//! them.

mod binding;
mod eni;
mod kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

pub use self::binding::{Binding, BindingError, POOL_TAG, RESTRICT};
pub use self::eni::{EniAddress, Origin};
pub use self::kinds::{PodsOnEnis, Pool, Pools};
use crate::{EdgeRules, Family};

/// The addresses in a `CiliumNode`, checked by the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePools {
    /// `status.eni.enis`.
    pub enis: Vec<Eni>,
    /// `spec.ipam.pools.allocated`.
    pub allocated: Vec<AllocatedPool>,
    /// `spec.ipam.pools.requested`.
    pub requested: Vec<RequestedPool>,
    /// True if `status.ipam.release-ips` has the mark of an operator that takes blocks back only
    /// for the document's current version.
    pub is_versioned: bool,
    /// `spec.ipam.pre-allocate`.
    pub pre_allocate: Option<u32>,
    /// The node's own addresses: never a pod's.
    pub addresses: BTreeSet<IpAddr>,
}

/// One of `spec.ipam.pools.allocated`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedPool {
    /// `pool`.
    pub pool: String,
    /// `allowFirstIP`, `allowLastIP`.
    pub edges: EdgeRules,
    /// `cidrs`.
    pub cidrs: Vec<IpNet>,
}

/// One of `spec.ipam.pools.requested`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedPool {
    /// `pool`.
    pub pool: String,
    /// `needed`: how many addresses of each family, in all. A family of which none is needed is
    /// not in it.
    pub needed: BTreeMap<Family, u64>,
}

/// One of `status.eni.enis`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eni {
    /// `id`.
    pub id: String,
    /// `number`: device index of the attachment; 0 is the primary.
    pub number: u8,
    /// `mac`.
    pub mac: [u8; 6],
    /// `ip`: the ENI's own IPv4 address; none in a subnet of IPv6 alone.
    pub primary_address: Option<Ipv4Addr>,
    /// `subnet`.
    pub subnet: Subnet,
    /// `vpc`: its CIDRs, the primary one first.
    pub vpc_cidrs: Vec<IpNet>,
    /// `addresses`, of both families. With prefix delegation the document lists those of each
    /// prefix here too.
    pub addresses: Vec<IpAddr>,
    /// `prefixes` and `ipv6-prefixes`.
    pub prefixes: Vec<IpNet>,
    /// `tags`.
    pub tags: BTreeMap<String, String>,
    /// True if pods must not use it (`first-interface-index`, `exclude-interface-tags`).
    pub excluded: bool,
    /// `spec.eni.use-primary-address`. The primary ENI's own address is the host's in any case.
    pub use_primary_address: bool,
}

/// The subnet of an ENI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// `id`.
    pub id: String,
    /// `cidr`; none in a subnet of IPv6 alone.
    pub cidr: Option<Ipv4Net>,
    /// The subnet's tags, of which the document says nothing; `None` while they are not known.
    pub tags: Option<BTreeMap<String, String>>,
}
