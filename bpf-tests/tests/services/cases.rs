//! The cases: clients, targets, and the servers that must answer.

use std::net::SocketAddr;

use anyhow::Result;
use ipam::Family;
use testkit::fabric::Place;

use crate::model::{Policy, SERVICE_PORT, Transport};
use crate::request::{Request, Source};
use crate::scene::{Scene, Site, Which, host_port, load_balancer};

/// The pods that are clients: one of each ENI.
pub(crate) const CLIENTS: [Site; 2] = [Site::Pod(0, 0), Site::Pod(1, 0)];
/// Clients beyond the node.
const STRANGERS: [Site; 2] = [Site::Peer, Site::Outside];

/// Server behind a `ClusterIP` for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backend {
    SameEni,
    OtherEni,
    OtherNode,
    Itself,
    Host,
    External,
}

/// Server for a client beyond the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Behind {
    /// A pod of this ENI.
    Eni(u8),
    OtherNode,
    Host,
}

/// A case of one client's request, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Case {
    ClusterIp(Backend),
    /// By policy `Cluster`, at an ENI.
    NodePort(u8, Behind),
    /// By policy `Local`, at an ENI.
    NodePortLocal(u8, Behind),
    /// At an ENI, for a pod of an ENI.
    HostPort(u8, u8),
    /// A load balancer that keeps the client's address and sends to a pod of this ENI directly.
    LoadBalancer(u8),
    NodeToClusterIp(Behind),
    NodeToExternalBackend,
    PodToNodePort(Policy),
    PodToHostPort,
    HostPortToItself,
    LocalDns,
    ClusterDns,
    Identity,
    Metadata,
    /// The metadata service, where the policy keeps pods' addresses.
    MetadataOwn,
    /// No service: between pods, with the VPC, with the Internet, from outside.
    Direct,
}

impl Case {
    pub(crate) const ALL: [Self; 36] = [
        Self::ClusterIp(Backend::SameEni),
        Self::ClusterIp(Backend::OtherEni),
        Self::ClusterIp(Backend::OtherNode),
        Self::ClusterIp(Backend::Itself),
        Self::ClusterIp(Backend::Host),
        Self::ClusterIp(Backend::External),
        Self::NodePort(0, Behind::Eni(0)),
        Self::NodePort(0, Behind::Eni(1)),
        Self::NodePort(1, Behind::Eni(0)),
        Self::NodePort(1, Behind::Eni(1)),
        Self::NodePort(0, Behind::OtherNode),
        Self::NodePort(1, Behind::OtherNode),
        Self::NodePort(0, Behind::Host),
        Self::NodePort(1, Behind::Host),
        Self::NodePortLocal(0, Behind::Eni(0)),
        Self::NodePortLocal(0, Behind::Eni(1)),
        Self::NodePortLocal(1, Behind::Eni(0)),
        Self::NodePortLocal(1, Behind::Eni(1)),
        Self::HostPort(0, 0),
        Self::HostPort(0, 1),
        Self::HostPort(1, 0),
        Self::HostPort(1, 1),
        Self::LoadBalancer(0),
        Self::LoadBalancer(1),
        Self::NodeToClusterIp(Behind::Eni(0)),
        Self::NodeToClusterIp(Behind::Eni(1)),
        Self::NodeToClusterIp(Behind::OtherNode),
        Self::NodeToClusterIp(Behind::Host),
        Self::NodeToExternalBackend,
        Self::PodToNodePort(Policy::Cluster),
        Self::PodToNodePort(Policy::Local),
        Self::PodToHostPort,
        Self::HostPortToItself,
        Self::LocalDns,
        Self::ClusterDns,
        Self::Identity,
    ];

    /// Cases without services, under the same rules.
    pub(crate) const BESIDE: [Self; 2] = [Self::Metadata, Self::Direct];

    pub(crate) fn name(self) -> String {
        let at = |eni: u8| if eni == 0 { "primary" } else { "secondary" };
        let behind = |behind: Behind| match behind {
            Behind::Eni(eni) => format!("pod of the {}", at(eni)),
            Behind::OtherNode => "another node".to_owned(),
            Behind::Host => "host network".to_owned(),
        };
        match self {
            Self::ClusterIp(backend) => {
                let backend = match backend {
                    Backend::SameEni => "same ENI",
                    Backend::OtherEni => "another ENI",
                    Backend::OtherNode => "another node",
                    Backend::Itself => "itself",
                    Backend::Host => "host network",
                    Backend::External => "external, masqueraded",
                };
                format!("ClusterIP, {backend}")
            }
            Self::NodePort(eni, to) => format!("NodePort Cluster at {}, {}", at(eni), behind(to)),
            Self::NodePortLocal(eni, to) => {
                format!("NodePort Local at {}, {}", at(eni), behind(to))
            }
            Self::HostPort(eni, to) => {
                format!("hostPort at {}, {}", at(eni), behind(Behind::Eni(to)))
            }
            Self::LoadBalancer(eni) => {
                format!("load balancer to {}", behind(Behind::Eni(eni)))
            }
            Self::NodeToClusterIp(to) => format!("node to ClusterIP, {}", behind(to)),
            Self::NodeToExternalBackend => "node to ClusterIP, external".to_owned(),
            Self::PodToNodePort(policy) => format!("pod to its node's NodePort {policy:?}"),
            Self::PodToHostPort => "pod to its node's hostPort".to_owned(),
            Self::HostPortToItself => "pod to its own hostPort".to_owned(),
            Self::LocalDns => "node-local DNS, own address".to_owned(),
            Self::ClusterDns => "node-local DNS, ClusterIP".to_owned(),
            Self::Identity => "pod identity agent".to_owned(),
            Self::Metadata => "instance metadata: primary".to_owned(),
            Self::MetadataOwn => "instance metadata: own".to_owned(),
            Self::Direct => "no service".to_owned(),
        }
    }

    /// Reason for which a case does not cover a transport.
    pub(crate) fn without(self, transport: Transport) -> Option<&'static str> {
        match (self, transport) {
            (Self::Identity | Self::Metadata | Self::MetadataOwn, Transport::Udp) => {
                Some("HTTP only")
            }
            _ => None,
        }
    }

    /// The requests.
    pub(crate) fn requests(self, scene: &Scene, family: Family) -> Result<Vec<Request>> {
        let asker = Asker { scene, family };
        match self {
            Self::ClusterIp(backend) => asker.cluster_ip(backend),
            Self::NodePort(eni, behind) => asker.node_port(eni, behind, Policy::Cluster),
            Self::NodePortLocal(eni, behind) => asker.node_port(eni, behind, Policy::Local),
            Self::HostPort(eni, of) => asker.host_port(eni, of),
            Self::LoadBalancer(eni) => {
                let to = load_balancer(eni, family)?;
                let server = Site::Pod(eni, 0);
                Ok(all(&[Site::Outside], to, server, Source::Client))
            }
            Self::NodeToClusterIp(behind) => {
                let server = pod_behind(behind);
                // A backend that is its own client is masqueraded.
                let source = match behind {
                    Behind::Host => Source::Node,
                    Behind::Eni(_) | Behind::OtherNode => Source::Client,
                };
                asker.service(&[Site::Node], server, source)
            }
            Self::NodeToExternalBackend => {
                asker.service(&[Site::Node], Site::Internet, Source::Client)
            }
            Self::PodToNodePort(policy) => asker.own_node_port(policy),
            Self::PodToHostPort => asker.own_host_port(),
            Self::HostPortToItself => {
                let mut requests = Vec::new();
                for (eni, client) in (0..).zip(CLIENTS) {
                    for at in [0, 1] {
                        let address = scene.node_address(at, family)?;
                        let to = SocketAddr::new(address, host_port(eni, 0));
                        requests.extend(all(&[client], to, client, Source::Node));
                    }
                }
                Ok(requests)
            }
            Self::LocalDns => asker.itself(Site::LocalDns, Source::Client),
            Self::ClusterDns => asker.itself(Site::ClusterDns, Source::Client),
            Self::Identity => asker.itself(Site::Identity, Source::Client),
            Self::Metadata => {
                let primary = scene.node_address(0, family)?;
                asker.itself(Site::Metadata, Source::Address(primary))
            }
            Self::MetadataOwn => asker.itself(Site::Metadata, Source::Client),
            Self::Direct => asker.direct(),
        }
    }
}

/// The server for a client beyond the node, or on the node itself.
fn pod_behind(behind: Behind) -> Site {
    match behind {
        Behind::Eni(eni) => Site::Pod(eni, 1),
        Behind::OtherNode => Site::Peer,
        Behind::Host => Site::Node,
    }
}

/// One request of several clients.
fn all(clients: &[Site], to: SocketAddr, server: Site, source: Source) -> Vec<Request> {
    let requests = clients.iter().map(|client| Request {
        client: *client,
        to,
        server,
        source,
    });
    requests.collect()
}

/// Builds the requests of one family.
struct Asker<'a> {
    scene: &'a Scene,
    family: Family,
}

impl Asker<'_> {
    /// To the `ClusterIP` of a server.
    fn service(&self, clients: &[Site], server: Site, source: Source) -> Result<Vec<Request>> {
        let which = Which::Of(server);
        let service = self.scene.service(which, Policy::Cluster, self.family)?;
        let to = SocketAddr::new(service.address, SERVICE_PORT);
        Ok(all(clients, to, server, source))
    }

    fn cluster_ip(&self, backend: Backend) -> Result<Vec<Request>> {
        let mut requests = Vec::new();
        for (eni, client) in (0..).zip(CLIENTS) {
            let (server, source) = match backend {
                Backend::SameEni => (Site::Pod(eni, 1), Source::Client),
                Backend::OtherEni => (Site::Pod(1 - eni, 1), Source::Client),
                Backend::OtherNode => (Site::Peer, Source::Client),
                Backend::Itself => (client, Source::Node),
                Backend::Host => (Site::Node, Source::Client),
                Backend::External => {
                    let address = self.scene.node_address(eni, self.family)?;
                    (Site::Internet, Source::Address(address))
                }
            };
            requests.extend(self.service(&[client], server, source)?);
        }
        Ok(requests)
    }

    fn node_port(&self, eni: u8, behind: Behind, policy: Policy) -> Result<Vec<Request>> {
        let server = pod_behind(behind);
        let service = self.scene.service(Which::Of(server), policy, self.family)?;
        let address = self.scene.node_address(eni, self.family)?;
        let to = SocketAddr::new(address, service.node_port());
        // Packets that netfilter delivers to the node's own sockets never reach its masquerade.
        let source = match (policy, behind) {
            (Policy::Cluster, Behind::Eni(_) | Behind::OtherNode) => Source::Node,
            (Policy::Cluster, Behind::Host) | (Policy::Local, _) => Source::Client,
        };
        Ok(all(&STRANGERS, to, server, source))
    }

    fn host_port(&self, eni: u8, of: u8) -> Result<Vec<Request>> {
        let to = SocketAddr::new(self.scene.node_address(eni, self.family)?, host_port(of, 1));
        Ok(all(&STRANGERS, to, Site::Pod(of, 1), Source::Client))
    }

    /// Pods use their own node's port, by the address of each ENI.
    fn own_node_port(&self, policy: Policy) -> Result<Vec<Request>> {
        let mut requests = Vec::new();
        for at in [0, 1] {
            let address = self.scene.node_address(at, self.family)?;
            for server in [Site::Pod(0, 1), Site::Pod(1, 1), Site::Peer, Site::Node] {
                if policy == Policy::Local && server == Site::Peer {
                    continue;
                }
                let service = self.scene.service(Which::Of(server), policy, self.family)?;
                let to = SocketAddr::new(address, service.node_port());
                let source = match (policy, server) {
                    (Policy::Cluster, Site::Pod(..) | Site::Peer) => Source::Node,
                    _ => Source::Client,
                };
                requests.extend(all(&CLIENTS, to, server, source));
            }
        }
        Ok(requests)
    }

    fn own_host_port(&self) -> Result<Vec<Request>> {
        let mut requests = Vec::new();
        for at in [0, 1] {
            let address = self.scene.node_address(at, self.family)?;
            for of in [0, 1] {
                let to = SocketAddr::new(address, host_port(of, 1));
                requests.extend(all(&CLIENTS, to, Site::Pod(of, 1), Source::Client));
            }
        }
        Ok(requests)
    }

    /// A server by its own address and port.
    fn itself(&self, server: Site, source: Source) -> Result<Vec<Request>> {
        let Place { address, .. } = self.scene.place(server, self.family)?;
        let to = SocketAddr::new(address, server.port());
        Ok(all(&CLIENTS, to, server, source))
    }

    fn direct(&self) -> Result<Vec<Request>> {
        let mut requests = Vec::new();
        for server in [Site::Pod(0, 1), Site::Pod(1, 1), Site::Peer, Site::Node] {
            requests.extend(self.itself(server, Source::Client)?);
        }
        for (eni, client) in (0..).zip(CLIENTS) {
            let own = Source::Address(self.scene.node_address(eni, self.family)?);
            let internet = self.itself(Site::Internet, own)?;
            requests.extend(internet.into_iter().filter(|a| a.client == client));
            let pod = self.scene.place(client, self.family)?.address;
            let to = SocketAddr::new(pod, client.port());
            let clients = [Site::Peer, Site::Outside, Site::Node];
            requests.extend(all(&clients, to, client, Source::Client));
        }
        Ok(requests)
    }
}
