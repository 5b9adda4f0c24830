//! Services of the real kube-proxy whose external address is the agent's own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipam::Family;
use serde_json::json;
use testkit::fabric::counters;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::{Asker, Echo, Session};
use testkit::fabric::{Fabric, Place, Pod, Spec};
use testkit::kubernetes::ProxyMode;

use crate::kube_proxy::KubeProxy;
use crate::model::{BACKEND_PORT, Backend, Policy, SERVICE_PORT, Served, Service};
use crate::scene::{MTU, wait_for_notes};

/// Maximum time until the agent has its addresses.
const SOON: Duration = Duration::from_secs(30);
/// The first of the clients' ports.
const FIRST_CLIENT_PORT: u16 = 10_000;
/// Bytes of a stream in each direction: many windows.
const BULK: usize = 1 << 20;
/// Sizes of datagrams in bytes: a small one, and one that is fragmented.
const DATAGRAMS: [usize; 2] = [7, 4000];

/// A node with a pod on each ENI, and with its agent's own addresses.
struct Bed {
    fabric: Fabric,
    pods: Vec<Arc<Pod>>,
    own: BTreeMap<Family, IpAddr>,
}

impl Bed {
    fn new() -> Result<Self> {
        let mut fabric = Fabric::ready(&Spec {
            mtu: MTU,
            ..Spec::with_world(json!({
                "ipam": {"families": ["ipv4", "ipv6"]},
                "services": {"cidrs": ["172.20.0.0/16", "fd5e::/108"]},
            }))
        })?;
        let pods = vec![fabric.add_pod(0, 0)?, fabric.add_pod(1, 0)?];
        let settings = json!({"ingress": "on", "state-dir": fabric.file("own")});
        let settings = json!({"agent-addresses": settings});
        fabric.agent.configure(&settings)?;
        fabric.start_agent()?;
        let own = || {
            let listed = fabric.agent.ask("GET", "/v1/addresses", None)?;
            let leases = listed["leases"].as_array().into_iter().flatten();
            let own = leases.filter(|lease| lease["state"] == "agent");
            let own = own.map(|lease| -> Result<_> {
                let text = lease["address"].as_str().context("no address")?;
                let address: IpAddr = text.parse()?;
                Ok((Family::of(address), address))
            });
            let own = own.collect::<Result<BTreeMap<_, _>>>()?;
            check(own.len() == 2, || listed.to_string())?;
            Ok(own)
        };
        let (own, _) = eventually(SOON, "the agent has addresses of its own", own)?;
        // Answers to clients outside leave untranslated.
        let sources: Vec<_> = own.values().map(|address| (*address).into()).collect();
        fabric.allow_untranslated(&sources)?;
        Ok(Self { fabric, pods, own })
    }

    /// One service for each policy and each pod, each with its own port.
    fn services(&self, family: Family) -> Result<Vec<Service>> {
        let own = *self.own.get(&family).context("no address of the agent")?;
        let (first, net) = match family {
            Family::V4 => (100, "172.20.0."),
            Family::V6 => (200, "fd5e::"),
        };
        let policies = [Policy::Cluster, Policy::Local].into_iter();
        let kinds = policies.flat_map(|policy| self.pods.iter().map(move |pod| (policy, pod)));
        let services = (0..).zip(kinds).map(|(place, (policy, pod))| {
            let number = first + place;
            Ok(Service {
                number,
                address: format!("{net}{number}").parse()?,
                external: Some(SocketAddr::new(own, SERVICE_PORT + place)),
                policy,
                sticky: false,
                backends: vec![Backend {
                    address: pod.address(family),
                    here: true,
                }],
            })
        });
        services.collect()
    }

    /// All kinds of clients, each with true if it is beyond the node.
    fn clients(&self, family: Family) -> Result<Vec<(Place<'_>, bool)>> {
        let beyond = [Host::Peer, Host::Outside].map(|host| (self.fabric.host(host, family), true));
        let pods = self.pods.iter().map(|pod| (pod.at(family), false));
        let node = (self.fabric.node_at(family)?, false);
        Ok(beyond.into_iter().chain(pods).chain([node]).collect())
    }
}

/// Connects a client to a service's external address, and returns the addresses that the server
/// saw.
fn exchange(client: Place, service: &Service, port: u16) -> Result<BTreeSet<IpAddr>> {
    let to = service.external.context("no external address")?;
    let mut session = Session::open(client, port, to)?;
    session.bulk(BULK)?;
    let mut seen = BTreeSet::from([session.seen().ip()]);
    let asker = Asker::open(client, port, to)?;
    for bytes in DATAGRAMS {
        seen.insert(asker.ask(bytes)?.ip());
    }
    Ok(seen)
}

/// Checks that no packet was dropped for a source that its ENI does not own.
fn no_foreign_source(fabric: &Fabric) -> Result<()> {
    let counters = counters::read(fabric)?;
    let mut of_foreign = counters.iter();
    let found =
        of_foreign.find(|((_, outcome), packets)| outcome == "foreign-source" && **packets > 0);
    ensure!(found.is_none(), "{found:?}");
    Ok(())
}

/// Checks that every client reaches every service by the agent's address. With policy `Local`,
/// servers see the own addresses of clients beyond the node.
pub(crate) fn is_served(mode: ProxyMode) -> Result<()> {
    let bed = Bed::new()?;
    let mut ports = FIRST_CLIENT_PORT..;
    let mut served = Vec::new();
    for family in Family::ALL {
        served.push(Served {
            family,
            services: bed.services(family)?,
            host_ports: Vec::new(),
            node: Vec::new(),
            local_dns: Vec::new(),
        });
    }
    let proxy = KubeProxy::start(&bed.fabric, mode, &served)?;
    wait_for_notes(&bed.fabric)?;
    for family in Family::ALL {
        let servers = bed.pods.iter();
        let servers = servers.map(|pod| Echo::speaking(pod.at(family), BACKEND_PORT));
        let _servers = servers.collect::<Result<Vec<_>>>()?;
        let services = served.iter().flat_map(|served| &served.services);
        for service in services.filter(|service| service.family() == family) {
            for (client, is_beyond) in bed.clients(family)? {
                let label = format!(
                    "{} to {} ({:?})",
                    client.address,
                    service.name(),
                    service.policy
                );
                let port = ports.next().context("a port")?;
                let seen = exchange(client, service, port).with_context(|| label.clone())?;
                if is_beyond && service.policy == Policy::Local {
                    ensure!(
                        seen == BTreeSet::from([client.address]),
                        "{label}: seen as {seen:?}"
                    );
                }
            }
        }
    }
    no_foreign_source(&bed.fabric)?;
    drop(proxy);
    bed.fabric.finish()
}
