//! The settings that shape the intended state.

use std::collections::BTreeSet;
use std::net::IpAddr;

use datapath_common::config::PortSlice;
use datapath_common::mark::MarkLayout;
use ipnet::IpNet;

use super::masquerade::MasqueradeSettings;

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
    /// Service destinations.
    pub services: Services,
    /// Addresses and networks of the host.
    pub host: HostSettings,
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

/// Addresses and networks that the host has beside those of its devices and routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// Configured networks behind the host, in addition to those that its routes reach.
    pub cidrs: BTreeSet<IpNet>,
    /// The agent's own addresses that the host's stack answers for.
    pub ingress: BTreeSet<IpAddr>,
    /// Addresses that the host's stack answers for though no device of the host has them.
    pub addresses: BTreeSet<IpAddr>,
}

/// Service destinations by the source that names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// Those of the configuration: CIDRs, and external or load balancer addresses.
    pub configured: BTreeSet<IpNet>,
    /// Those of the cluster.
    pub cluster: ClusterServices,
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
