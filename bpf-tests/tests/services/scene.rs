//! A node with pods on both of its ENIs, servers at every possible place of a backend, and all of
//! its services.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::Echo;
use testkit::fabric::world;
use testkit::fabric::{Fabric, Netns, Place, Pod, Spec};
use testkit::kubernetes::ProxyMode;

use crate::kube_proxy::KubeProxy;
use crate::model::{
    BACKEND_PORT, Backend, DNS_PORT, FIRST_NODE_PORT, HostPort, Policy, SERVICE_PORT, Served,
    Service,
};
use crate::nftables;
use crate::rules::Kind;
use crate::special::keep_invalid;

/// MTU of every link: that of the Internet, so that large datagrams are fragmented.
pub(crate) const MTU: u32 = 1500;
/// Pods on each ENI.
const PODS: usize = 2;
/// The first of the host ports.
const FIRST_HOST_PORT: u16 = 7000;
/// The first of the clients' ports: above all servers' and host ports, below node ports.
const FIRST_CLIENT_PORT: u16 = 10_000;
/// The time that the agent may take to see rules, and to load other programs for them.
const SEEN: Duration = Duration::from_secs(30);
/// A TTL of the metadata service's answers that reaches pods, as a hop limit of 2 has it.
const METADATA_TTL: u8 = 3;

/// Place of a client or a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Site {
    /// A pod of this node: its ENI, and its index there.
    Pod(u8, usize),
    /// The node's own network.
    Node,
    /// A pod of another node.
    Peer,
    /// A host beyond the VPC that is reached untranslated.
    Outside,
    /// A server on the Internet.
    Internet,
    /// The instance metadata service.
    Metadata,
    /// The node-local DNS cache, by its own address.
    LocalDns,
    /// The node-local DNS cache, by the address of the cluster's DNS service.
    ClusterDns,
    /// The pod identity agent of the node.
    Identity,
}

impl Site {
    /// Possible places of a service's backend.
    const BACKENDS: [Self; 7] = [
        Self::Pod(0, 0),
        Self::Pod(0, 1),
        Self::Pod(1, 0),
        Self::Pod(1, 1),
        Self::Node,
        Self::Peer,
        Self::Internet,
    ];

    /// The backends of a service with several: on the ENI of a client, on the other, and on another
    /// node.
    pub(crate) const SPREAD: [Self; 3] = [Self::Pod(0, 1), Self::Pod(1, 1), Self::Peer];

    /// True if it is on this node.
    fn is_here(self) -> bool {
        matches!(self, Self::Pod(..) | Self::Node)
    }

    /// Port of its server.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Pod(..) | Self::Node | Self::Peer | Self::Outside | Self::Internet => {
                BACKEND_PORT
            }
            Self::LocalDns | Self::ClusterDns => DNS_PORT,
            Self::Metadata | Self::Identity => SERVICE_PORT,
        }
    }

    /// The address that the node gets for it.
    fn added_to_node(self, family: Family) -> Option<IpAddr> {
        let text = match (self, family) {
            (Self::LocalDns, Family::V4) => "169.254.20.10",
            (Self::LocalDns, Family::V6) => "fd00:169:254:20::10",
            (Self::ClusterDns, Family::V4) => "172.20.0.53",
            (Self::ClusterDns, Family::V6) => "fd5e::53",
            (Self::Identity, Family::V4) => "169.254.170.23",
            (Self::Identity, Family::V6) => "fd00:ec2::23",
            _ => return None,
        };
        text.parse().ok()
    }
}

/// Kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Which {
    /// A service with one backend on this node or elsewhere; with policy `Local` it has another one
    /// on another node.
    Of(Site),
    /// A service with the backends [`Site::SPREAD`].
    Spread,
    /// A service with the backends [`Site::SPREAD`], where a client stays with its backend.
    Sticky,
    /// A service without backends.
    Empty,
}

/// The scene of one kind of service rules.
#[derive(Debug)]
pub(crate) struct Scene {
    // Dropped first, as it runs in the fabric.
    _rules: Option<KubeProxy>,
    servers: BTreeMap<(Site, Family), Echo>,
    services: BTreeMap<(Which, Policy, Family), Service>,
    pods: Vec<((u8, usize), Arc<Pod>)>,
    clients: AtomicU16,
    pub(crate) fabric: Fabric,
}

/// Path of pods' packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Path {
    /// Past the host's stack, except packets that the stack has to translate.
    Direct,
    /// All of them through the host's stack.
    Stack,
}

/// Source of the rules, and path of pods' packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setting {
    pub(crate) path: Path,
    pub(crate) kind: Kind,
}

impl Setting {
    /// Tested settings: where all packets take the stack, the kind of rules makes no difference to
    /// our programs.
    pub(crate) const ALL: [Self; 6] = [
        Self::direct(Kind::IptablesLegacy),
        Self::direct(Kind::IptablesNft),
        Self::direct(Kind::Nftables),
        Self::direct(Kind::KubeProxy(ProxyMode::Iptables)),
        Self::direct(Kind::KubeProxy(ProxyMode::Nftables)),
        Self::STACK,
    ];

    pub(crate) const STACK: Self = Self {
        path: Path::Stack,
        kind: Kind::Nftables,
    };

    pub(crate) const fn direct(kind: Kind) -> Self {
        Self {
            path: Path::Direct,
            kind,
        }
    }

    pub(crate) fn name(self) -> String {
        let kind = self.kind.name();
        match self.path {
            Path::Direct => kind.to_owned(),
            Path::Stack => format!("{kind}, stack"),
        }
    }
}

fn settings(path: Path) -> Value {
    let path = match path {
        Path::Direct => "direct",
        Path::Stack => "stack",
    };
    json!({
        "datapath": {"path": path},
        "masquerade": {"metadata": "primary"},
        "services": {"cidrs": ["172.20.0.0/16", "fd5e::/108"]},
    })
}

impl Scene {
    /// Makes the scene.
    pub(crate) fn new(setting: Setting) -> Result<Self> {
        let mut fabric = Fabric::ready(&Spec {
            mtu: MTU,
            ..Spec::with_world(settings(setting.path))
        })?;
        let mut pods = Vec::new();
        for eni in [0, 1] {
            for index in 0..PODS {
                pods.push(((eni, index), fabric.add_pod(eni, index)?));
            }
        }
        fabric.world()?.set_metadata_ttl(METADATA_TTL)?;
        let mut scene = Self {
            _rules: None,
            servers: BTreeMap::new(),
            services: BTreeMap::new(),
            pods,
            clients: AtomicU16::new(FIRST_CLIENT_PORT),
            fabric,
        };
        let added = [Site::LocalDns, Site::ClusterDns, Site::Identity];
        scene.add_devices()?;
        for family in Family::ALL {
            scene.add_addresses(family, &added)?;
            let others = [Site::Metadata].iter().chain(&added);
            for site in Site::BACKENDS.iter().chain(others) {
                let server = Echo::speaking(scene.place(*site, family)?, site.port())?;
                scene.servers.insert((*site, family), server);
            }
            scene.add_services(family)?;
        }
        let served = Family::ALL.map(|family| scene.served(family));
        let served = served.into_iter().collect::<Result<Vec<_>>>()?;
        scene.add_load_balancers()?;
        keep_invalid(&scene.fabric)?;
        let rules = setting.kind.install(&scene.fabric, &served)?;
        if setting.path == Path::Direct {
            wait_for_notes(&scene.fabric)?;
        }
        Ok(Self {
            _rules: rules,
            ..scene
        })
    }

    /// Adds the devices of the node's own addresses. A real node has dummy devices. A bridge without
    /// ports is equivalent, as some kernels of the tests lack dummy devices.
    fn add_devices(&self) -> Result<()> {
        let node = &self.fabric.node;
        for device in ["nodelocaldns", "pod-id-link0"] {
            node.ip(&format!(
                "link add {device} type bridge\nlink set {device} up"
            ))?;
        }
        Ok(())
    }

    /// Adds addresses of sites to the node.
    fn add_addresses(&self, family: Family, sites: &[Site]) -> Result<()> {
        for site in sites {
            let Some(address) = site.added_to_node(family) else {
                continue;
            };
            let device = match site {
                Site::Identity => "pod-id-link0",
                _ => "nodelocaldns",
            };
            let length = family.host_length();
            let nodad = if family == Family::V6 { "nodad" } else { "" };
            let node = &self.fabric.node;
            node.ip(&format!("addr add {address}/{length} dev {device} {nodad}"))?;
        }
        Ok(())
    }

    fn add_services(&mut self, family: Family) -> Result<()> {
        let mut wanted: Vec<_> = Site::BACKENDS
            .iter()
            .map(|site| (Which::Of(*site), Policy::Cluster, vec![*site]))
            .collect();
        let here = Site::BACKENDS.iter().filter(|site| site.is_here());
        wanted.extend(here.map(|site| (Which::Of(*site), Policy::Local, vec![*site, Site::Peer])));
        wanted.push((Which::Spread, Policy::Cluster, Site::SPREAD.to_vec()));
        wanted.push((Which::Sticky, Policy::Cluster, Site::SPREAD.to_vec()));
        wanted.push((Which::Empty, Policy::Cluster, Vec::new()));
        let first = match family {
            Family::V4 => 100,
            Family::V6 => 200,
        };
        for (number, (which, policy, sites)) in (first..).zip(wanted) {
            let backend = |site: Site| -> Result<Backend> {
                Ok(Backend {
                    address: self.place(site, family)?.address,
                    here: site.is_here(),
                })
            };
            let address = match family {
                Family::V4 => [172, 20, 0, u8::try_from(number)?].into(),
                Family::V6 => format!("fd5e::{number}").parse()?,
            };
            let service = Service {
                number,
                address,
                external: None,
                policy,
                sticky: which == Which::Sticky,
                backends: sites.into_iter().map(backend).collect::<Result<_>>()?,
            };
            self.services.insert((which, policy, family), service);
        }
        Ok(())
    }

    fn served(&self, family: Family) -> Result<Served> {
        let of_family = self.services.values().filter(|s| s.family() == family);
        let mut node = Vec::new();
        for eni in [0, 1] {
            node.push(self.node_address(eni, family)?);
        }
        let host_ports = self.pods.iter().map(|((eni, index), pod)| HostPort {
            port: host_port(*eni, *index),
            pod: pod.address(family),
        });
        let dns = [Site::LocalDns, Site::ClusterDns];
        Ok(Served {
            family,
            services: of_family.cloned().collect(),
            host_ports: host_ports.collect(),
            node,
            local_dns: dns
                .iter()
                .filter_map(|site| site.added_to_node(family))
                .collect(),
        })
    }

    /// The service of a kind, for a policy.
    pub(crate) fn service(&self, which: Which, policy: Policy, family: Family) -> Result<&Service> {
        let found = self.services.get(&(which, policy, family));
        found.with_context(|| format!("no service {which:?} {policy:?} {family:?}"))
    }

    /// The server of a site.
    pub(crate) fn server(&self, site: Site, family: Family) -> Result<&Echo> {
        let found = self.servers.get(&(site, family));
        found.with_context(|| format!("nobody serves at {site:?} {family:?}"))
    }

    /// A pod.
    pub(crate) fn pod(&self, eni: u8, index: usize) -> Result<&Pod> {
        let found = self.pods.iter().find(|(at, _)| *at == (eni, index));
        let (_, pod) = found.with_context(|| format!("no pod {index} of ENI {eni}"))?;
        Ok(pod)
    }

    /// A port that no client has used. If an earlier flow to another destination had the same
    /// return path, the kernel would give the new flow another port. The address that a server must
    /// see would then depend on the ports of other sockets.
    pub(crate) fn client_port(&self) -> u16 {
        let port = self.clients.fetch_add(1, Ordering::Relaxed);
        assert!(
            port < FIRST_NODE_PORT,
            "more clients than there are ports from {FIRST_CLIENT_PORT} to the first node port"
        );
        port
    }

    /// A site's end of a flow.
    pub(crate) fn place(&self, site: Site, family: Family) -> Result<Place<'_>> {
        let fabric = &self.fabric;
        Ok(match site {
            Site::Pod(eni, index) => self.pod(eni, index)?.at(family),
            Site::Node => fabric.node_at(family)?,
            Site::Peer => fabric.host(Host::Peer, family),
            Site::Outside => fabric.host(Host::Outside, family),
            Site::Internet => fabric.world()?.at(world::Site::Internet, family),
            Site::Metadata => fabric.world()?.at(world::Site::Metadata, family),
            Site::LocalDns | Site::ClusterDns | Site::Identity => Place {
                netns: &fabric.node,
                address: site
                    .added_to_node(family)
                    .context("an address of the node")?,
            },
        })
    }

    /// Flushes the path MTUs of all ends.
    pub(crate) fn forget_routes(&self) -> Result<()> {
        self.forget_pods_routes()?;
        forget_routes(&self.fabric.node)?;
        forget_routes(self.place(Site::Internet, Family::V4)?.netns)
    }

    /// Flushes the path MTUs of pods.
    pub(crate) fn forget_pods_routes(&self) -> Result<()> {
        let pods = self.pods.iter();
        pods.map(|(_, pod)| &pod.netns).try_for_each(forget_routes)
    }

    /// Restarts the agent with another policy for the instance metadata service.
    pub(crate) fn set_metadata(&mut self, policy: &str) -> Result<()> {
        self.fabric
            .agent
            .set("/masquerade/metadata", &json!(policy))?;
        self.fabric.start_agent()
    }

    /// Lets pods' addresses leave the VPC untranslated.
    pub(crate) fn allow_untranslated(&mut self) -> Result<()> {
        let pods = self.pods.iter();
        let addresses: Vec<_> = pods
            .flat_map(|(_, pod)| Family::ALL.map(|family| pod.address(family).into()))
            .collect();
        self.fabric.allow_untranslated(&addresses)
    }

    /// Makes the VPC's router a load balancer that keeps the client's address and sends to a pod
    /// directly.
    fn add_load_balancers(&self) -> Result<()> {
        let mut rules = String::new();
        for (family, ip) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
            for eni in [0, 1] {
                let from = load_balancer(eni, family)?;
                let to = SocketAddr::new(self.pod(eni, 0)?.address(family), BACKEND_PORT);
                // Writing to a string cannot fail.
                let _infallible = writeln!(
                    rules,
                    "    {ip} daddr {} meta l4proto {{ tcp, udp }} th dport {} dnat {ip} to {to}",
                    from.ip(),
                    from.port()
                );
            }
        }
        let table = format!(
            "table inet balancer {{\n  chain prerouting {{\n    \
             type nat hook prerouting priority dstnat; policy accept;\n{rules}  }}\n}}\n"
        );
        nftables::apply(&self.fabric.vpc.router, &table)
    }

    /// The node's own address on an ENI.
    pub(crate) fn node_address(&self, eni: u8, family: Family) -> Result<IpAddr> {
        self.fabric.translation_address(eni, family)
    }
}

/// Waits until the agent has seen the rules, and its programs are those that note flows.
pub(crate) fn wait_for_notes(fabric: &Fabric) -> Result<()> {
    let agent = &fabric.agent;
    eventually(SEEN, "flows of service NAT are noted", || {
        let status = agent.ask("GET", "/v1/status", None)?;
        let service_nat = &status["service-nat"];
        check(service_nat["notes"] == true, || service_nat.to_string())?;
        let objects = agent.ask("GET", "/v1/routes", None)?;
        let mut objects = objects.as_array().into_iter().flatten();
        let missing = objects.find(|object| object["state"] != "present");
        check(missing.is_none(), || format!("{missing:?}"))
    })
    .map(drop)
}

/// The host port of a pod.
pub(crate) fn host_port(eni: u8, index: usize) -> u16 {
    let index = u16::try_from(index).unwrap_or(u16::MAX);
    FIRST_HOST_PORT + 10 * u16::from(eni) + index
}

/// Flushes the path MTUs of a namespace.
fn forget_routes(netns: &Netns) -> Result<()> {
    for family in ["-4", "-6"] {
        netns.run(&format!("ip {family} route flush cache"))?;
    }
    Ok(())
}

/// Address of a load balancer in the VPC for a pod of an ENI.
pub(crate) fn load_balancer(eni: u8, family: Family) -> Result<SocketAddr> {
    let text = match family {
        Family::V4 => format!("198.18.0.{}", 10 + eni),
        Family::V6 => format!("2001:db8:18::{}", 10 + eni),
    };
    Ok(SocketAddr::new(text.parse()?, SERVICE_PORT))
}
