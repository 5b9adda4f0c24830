//! Services of a node, independent of their rules.

use std::net::{IpAddr, SocketAddr};

use ipam::Family;
use ipnet::IpNet;

/// Port of every service.
pub(crate) const SERVICE_PORT: u16 = 80;
/// Port of every backend.
pub(crate) const BACKEND_PORT: u16 = 8080;
/// Port of DNS (RFC 1035 section 4.2).
pub(crate) const DNS_PORT: u16 = 53;
/// The first of the node ports; Kubernetes assigns 30000 to 32767.
pub(crate) const FIRST_NODE_PORT: u16 = 30_000;
/// The time that a client stays with its backend, in seconds: Kubernetes' default.
pub(crate) const STICKY_SECONDS: u32 = 10_800;

/// Protocols that service NAT distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    pub(crate) const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// Name in iptables and nft.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Backends that answer requests from outside of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Policy {
    /// Any; the client is masqueraded.
    Cluster,
    /// The node's own; the client keeps its address.
    Local,
}

/// A backend of a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backend {
    pub(crate) address: IpAddr,
    /// True if it is on this node.
    pub(crate) here: bool,
}

/// A service of one family, over both transports.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) number: u16,
    pub(crate) address: IpAddr,
    /// Its external address, if it has one, and the port that it has at all of its addresses then.
    pub(crate) external: Option<SocketAddr>,
    pub(crate) policy: Policy,
    /// True if a client stays with its backend.
    pub(crate) sticky: bool,
    pub(crate) backends: Vec<Backend>,
}

impl Service {
    pub(crate) fn name(&self) -> String {
        let family = match self.family() {
            Family::V4 => "v4",
            Family::V6 => "v6",
        };
        format!("service-{family}-{}", self.number)
    }

    pub(crate) fn family(&self) -> Family {
        Family::of(self.address)
    }

    pub(crate) fn node_port(&self) -> u16 {
        FIRST_NODE_PORT + self.number
    }
}

/// A port of the node that is mapped to a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPort {
    pub(crate) port: u16,
    pub(crate) pod: IpAddr,
}

/// All services of a node in one family.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) family: Family,
    pub(crate) services: Vec<Service>,
    pub(crate) host_ports: Vec<HostPort>,
    /// The node's own addresses, at which node ports are served.
    pub(crate) node: Vec<IpAddr>,
    /// The addresses of the node-local DNS cache, which it excludes from connection tracking.
    pub(crate) local_dns: Vec<IpAddr>,
}

/// An address as one CIDR.
pub(crate) fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}
