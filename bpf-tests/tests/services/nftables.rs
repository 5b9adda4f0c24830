//! Services of a node as rules of nftables: kube-proxy's as its mode `nftables` writes them, the
//! portmap plugin's, and the node-local DNS cache's.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use ipam::Family;
use testkit::fabric::{Netns, command};

use crate::model::{
    BACKEND_PORT, DNS_PORT, Policy, SERVICE_PORT, STICKY_SECONDS, Served, Service, Transport,
};

/// Adds rules to the existing ones.
pub(crate) fn apply(netns: &Netns, rules: &str) -> Result<()> {
    command::run_with_input(netns.command("nft").args(["-f", "-"]), rules)?;
    Ok(())
}

/// nft's words for a family: of a table and of a header, and of an address type.
fn words(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::V4 => ("ip", "ipv4_addr"),
        Family::V6 => ("ip6", "ipv6_addr"),
    }
}

/// The parts of kube-proxy's table that grow with services.
#[derive(Debug, Default)]
struct Parts {
    chains: String,
    sets: String,
    services: Vec<String>,
    node_ports: Vec<String>,
    no_endpoints: Vec<String>,
    no_node_endpoints: Vec<String>,
}

/// The elements of a set or map; nft accepts no empty list.
fn elements(list: &[impl ToString]) -> String {
    let list: Vec<_> = list.iter().map(ToString::to_string).collect();
    match list.as_slice() {
        [] => String::new(),
        some => format!("elements = {{ {} }}", some.join(", ")),
    }
}

/// The base chains of kube-proxy's table.
const HOOKS: &str = "\
  chain filter-input {
    type filter hook input priority -110; policy accept;
    ct state new jump nodeport-endpoints-check
    ct state new jump service-endpoints-check
  }
  chain filter-forward {
    type filter hook forward priority -110; policy accept;
    ct state invalid drop
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain filter-output {
    type filter hook output priority -110; policy accept;
    ct state new jump service-endpoints-check
  }
  chain filter-output-post-dnat {
    type filter hook output priority -90; policy accept;
    ct state new jump cluster-ips-check
  }
  chain nat-prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    jump services
  }
  chain nat-output { type nat hook output priority -100; policy accept; jump services; }
  chain nat-postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    jump masquerading
  }
";

/// kube-proxy's table: `Proxier.syncProxyRules` of its package `nftables`, with an empty cluster
/// CIDR, and with node ports at all of the node's addresses.
pub(crate) fn kube_proxy(served: &Served) -> String {
    let (ip, address) = words(served.family);
    let mut parts = Parts::default();
    for service in &served.services {
        for transport in Transport::ALL {
            render(&mut parts, service, transport);
        }
    }
    let cluster: Vec<_> = served.services.iter().map(|s| s.address).collect();
    let (cluster, node) = (elements(&cluster), elements(&served.node));
    let by_service = format!("type {address} . inet_proto . inet_service : verdict;");
    let by_port = "type inet_proto . inet_service : verdict;";
    let Parts { chains, sets, .. } = &parts;
    let [services, node_ports, no_endpoints, no_node_endpoints] = [
        &parts.services,
        &parts.node_ports,
        &parts.no_endpoints,
        &parts.no_node_endpoints,
    ]
    .map(|list| elements(list));
    format!(
        "table {ip} kube-proxy {{
  set cluster-ips {{ type {address}; {cluster} }}
  set nodeport-ips {{ type {address}; {node} }}
  map service-ips {{ {by_service} {services} }}
  map service-nodeports {{ {by_port} {node_ports} }}
  map no-endpoint-services {{ {by_service} {no_endpoints} }}
  map no-endpoint-nodeports {{ {by_port} {no_node_endpoints} }}
{sets}
  chain mark-for-masquerade {{ meta mark set meta mark or 0x4000; }}
  chain masquerading {{
    meta mark and 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random
  }}
  chain reject-chain {{ reject; }}
{chains}
  chain services {{
    {ip} daddr . meta l4proto . th dport vmap @service-ips
    {ip} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
  }}
  chain service-endpoints-check {{
    {ip} daddr . meta l4proto . th dport vmap @no-endpoint-services
  }}
  chain nodeport-endpoints-check {{
    {ip} daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
  }}
  chain cluster-ips-check {{ {ip} daddr @cluster-ips reject; }}
{HOOKS}}}
"
    )
}

/// Goes to one of several chains with equal probability.
fn balance(to: &[String]) -> String {
    let verdicts = to.iter().enumerate();
    let verdicts: Vec<_> = verdicts
        .map(|(index, target)| format!("{index} : goto {target}"))
        .collect();
    format!(
        "    numgen random mod {} vmap {{ {} }}\n",
        to.len(),
        verdicts.join(", ")
    )
}

/// The chains of a service's backends.
struct Endpoints {
    /// Each chain with the place of its backend: on this node or elsewhere.
    chains: Vec<(String, bool)>,
    /// Rules that lead a client to the backend that it has used.
    staying: String,
}

impl Endpoints {
    fn names(&self, only_here: bool) -> Vec<String> {
        let wanted = self.chains.iter().filter(|(_, here)| *here || !only_here);
        wanted.map(|(endpoint, _)| endpoint.clone()).collect()
    }
}

/// The chains of the backends of one port.
fn render_endpoints(parts: &mut Parts, service: &Service, transport: Transport) -> Endpoints {
    let protocol = transport.name();
    let (ip, kind) = words(service.family());
    let id = format!("{}-{protocol}", service.number);
    let mut endpoints = Vec::new();
    let mut staying = String::new();
    for (index, backend) in service.backends.iter().enumerate() {
        let endpoint = format!("endpoint-{id}-{index}");
        let mut remember = String::new();
        if service.sticky {
            let set = format!("affinity-{id}-{index}");
            let _infallible = writeln!(
                parts.sets,
                "  set {set} {{ type {kind}; flags dynamic, timeout; size 65535; \
                 timeout {STICKY_SECONDS}s; }}"
            );
            let _infallible = writeln!(staying, "    {ip} saddr @{set} goto {endpoint}");
            remember = format!("    update @{set} {{ {ip} saddr }}\n");
        }
        let to = SocketAddr::new(backend.address, BACKEND_PORT);
        let _infallible = writeln!(
            parts.chains,
            "  chain {endpoint} {{\n    {ip} saddr {} jump mark-for-masquerade\n{remember}    \
             meta l4proto {protocol} dnat to {to}\n  }}",
            backend.address
        );
        endpoints.push((endpoint, backend.here));
    }
    Endpoints {
        chains: endpoints,
        staying,
    }
}

/// One port of one service. Writing to a string cannot fail.
fn render(parts: &mut Parts, service: &Service, transport: Transport) {
    let protocol = transport.name();
    let id = format!("{}-{protocol}", service.number);
    let by_address = format!("{} . {protocol} . {SERVICE_PORT}", service.address);
    let by_port = format!("{protocol} . {}", service.node_port());
    if service.backends.is_empty() {
        let reject = |key: String| format!("{key} : goto reject-chain");
        parts.no_endpoints.push(reject(by_address));
        parts.no_node_endpoints.push(reject(by_port));
        return;
    }
    let (all, external) = (format!("service-{id}"), format!("external-{id}"));
    parts.services.push(format!("{by_address} : goto {all}"));
    parts
        .node_ports
        .push(format!("{by_port} : goto {external}"));

    let endpoints = render_endpoints(parts, service, transport);
    let staying = &endpoints.staying;
    let _infallible = writeln!(
        parts.chains,
        "  chain {all} {{\n{staying}{}  }}",
        balance(&endpoints.names(false))
    );
    let rules = match service.policy {
        Policy::Cluster => format!("    jump mark-for-masquerade\n    goto {all}\n"),
        Policy::Local => {
            let here = match endpoints.names(true) {
                none if none.is_empty() => "    drop\n".to_owned(),
                some => balance(&some),
            };
            format!(
                "    fib saddr type local jump mark-for-masquerade\n    \
                 fib saddr type local goto {all}\n{here}"
            )
        }
    };
    let _infallible = writeln!(parts.chains, "  chain {external} {{\n{rules}  }}");
}

/// Host ports, as the portmap plugin writes them for nftables (containernetworking-plugins 1.6).
pub(crate) fn portmap(served: &Served) -> String {
    let (ip, _) = words(served.family);
    let mut rules = String::new();
    let mut hairpins = String::new();
    for host_port in &served.host_ports {
        let (port, pod) = (host_port.port, host_port.pod);
        let to = SocketAddr::new(pod, BACKEND_PORT);
        for transport in Transport::ALL {
            let protocol = transport.name();
            let _infallible = writeln!(rules, "    {protocol} dport {port} dnat to {to}");
        }
        let _infallible = writeln!(hairpins, "    {ip} saddr {pod} {ip} daddr {pod} masquerade");
    }
    format!(
        "table {ip} cni_hostport {{
  chain hostports {{
{rules}  }}
  chain prerouting {{
    type nat hook prerouting priority dstnat; policy accept;
    fib daddr type local jump hostports
  }}
  chain output {{
    type nat hook output priority -100; policy accept;
    fib daddr type local jump hostports
  }}
  chain masquerading {{
    type nat hook postrouting priority srcnat; policy accept;
{hairpins}  }}
}}
"
    )
}

/// Rules of the node-local DNS cache: its traffic is not tracked.
pub(crate) fn local_dns(served: &Served) -> String {
    let (ip, _) = words(served.family);
    let rules = |end: &dyn Fn(IpAddr, &str) -> String| -> String {
        let list = served.local_dns.iter();
        list.flat_map(|address| Transport::ALL.map(|t| end(*address, t.name())))
            .collect()
    };
    let to = rules(&|address, protocol| {
        format!("    {ip} daddr {address} {protocol} dport {DNS_PORT} notrack\n")
    });
    let from = rules(&|address, protocol| {
        format!("    {ip} saddr {address} {protocol} sport {DNS_PORT} notrack\n")
    });
    format!(
        "table {ip} node-local-dns {{
  chain prerouting {{
    type filter hook prerouting priority raw; policy accept;
{to}  }}
  chain output {{
    type filter hook output priority raw; policy accept;
{to}{from}  }}
}}
"
    )
}
