//! Services of a node as rules of iptables: kube-proxy's as version 1.20 writes them, the portmap
//! plugin's, and the node-local DNS cache's.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use ipam::Family;
use testkit::fabric::{Netns, command};

use crate::model::{
    BACKEND_PORT, DNS_PORT, Policy, SERVICE_PORT, STICKY_SECONDS, Served, Service, Transport, host,
};

/// Backend of iptables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tool {
    Legacy,
    Nft,
}

impl Tool {
    /// Debian's name of the program that restores rules of a family.
    fn restore(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Legacy, Family::V4) => "iptables-legacy-restore",
            (Self::Legacy, Family::V6) => "ip6tables-legacy-restore",
            (Self::Nft, Family::V4) => "iptables-nft-restore",
            (Self::Nft, Family::V6) => "ip6tables-nft-restore",
        }
    }

    /// Adds rules to the existing ones.
    pub(crate) fn apply(self, netns: &Netns, family: Family, rules: &str) -> Result<()> {
        let mut restore = netns.command(self.restore(family));
        command::run_with_input(restore.args(["--noflush", "--wait"]), rules)?;
        Ok(())
    }
}

/// The rules of one table, chains first.
#[derive(Debug)]
struct Table {
    name: &'static str,
    chains: String,
    rules: String,
}

impl Table {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            chains: String::new(),
            rules: String::new(),
        }
    }

    fn chain(&mut self, name: &str) {
        // Writing to a string cannot fail.
        let _infallible = writeln!(self.chains, ":{name} - [0:0]");
    }

    fn rule(&mut self, chain: &str, rule: &str) {
        let _infallible = writeln!(self.rules, "-A {chain} {rule}");
    }

    fn text(&self) -> String {
        let Self {
            name,
            chains,
            rules,
        } = self;
        format!("*{name}\n{chains}{rules}COMMIT\n")
    }
}

/// The name of a chain of a service's port: iptables allows 28 characters.
fn chain(kind: &str, service: &Service, transport: Transport) -> String {
    format!("KUBE-{kind}-{}-{}", service.number, transport.name())
}

/// Jumps to one of several chains with equal probability: the last one takes the rest.
fn balance(table: &mut Table, from: &str, to: &[String]) {
    for (index, target) in to.iter().enumerate() {
        let left = to.len() - index;
        let chance = 1.0 / f64::from(u32::try_from(left).unwrap());
        let random = match left {
            1 => String::new(),
            _ => format!("-m statistic --mode random --probability {chance:.10} "),
        };
        table.rule(from, &format!("{random}-j {target}"));
    }
}

/// kube-proxy's rules: `Proxier.syncProxyRules` of Kubernetes 1.20, with an empty cluster CIDR.
pub(crate) fn kube_proxy(served: &Served) -> String {
    let (mut nat, mut filter) = (Table::new("nat"), Table::new("filter"));
    for name in [
        "KUBE-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-POSTROUTING",
        "KUBE-MARK-MASQ",
        "KUBE-MARK-DROP",
    ] {
        nat.chain(name);
    }
    for name in ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD"] {
        filter.chain(name);
    }
    for from in ["PREROUTING", "OUTPUT"] {
        nat.rule(from, "-j KUBE-SERVICES");
    }
    nat.rule("POSTROUTING", "-j KUBE-POSTROUTING");
    nat.rule(
        "KUBE-POSTROUTING",
        "-m mark ! --mark 0x4000/0x4000 -j RETURN",
    );
    nat.rule("KUBE-POSTROUTING", "-j MARK --xor-mark 0x4000");
    nat.rule("KUBE-POSTROUTING", "-j MASQUERADE --random-fully");
    nat.rule("KUBE-MARK-MASQ", "-j MARK --or-mark 0x4000");
    nat.rule("KUBE-MARK-DROP", "-j MARK --or-mark 0x8000");
    let new = "-m conntrack --ctstate NEW";
    for (from, to) in [
        ("INPUT", "KUBE-EXTERNAL-SERVICES"),
        ("FORWARD", "KUBE-EXTERNAL-SERVICES"),
        ("FORWARD", "KUBE-SERVICES"),
        ("OUTPUT", "KUBE-SERVICES"),
    ] {
        filter.rule(from, &format!("{new} -j {to}"));
    }
    filter.rule("FORWARD", "-j KUBE-FORWARD");
    for rule in [
        "-m conntrack --ctstate INVALID -j DROP",
        "-m mark --mark 0x4000/0x4000 -j ACCEPT",
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    ] {
        filter.rule("KUBE-FORWARD", rule);
    }
    // Rules of the kubelet.
    for from in ["INPUT", "OUTPUT"] {
        filter.rule(from, "-m mark --mark 0x8000/0x8000 -j DROP");
    }
    for service in &served.services {
        for transport in Transport::ALL {
            render(&mut nat, &mut filter, service, transport);
        }
    }
    nat.rule(
        "KUBE-SERVICES",
        "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
    );
    nat.text() + &filter.text()
}

/// Leads a client to the backend that it has used.
fn stay(sep: &str) -> String {
    format!("-m recent --name {sep} --rcheck --seconds {STICKY_SECONDS} --reap -j {sep}")
}

/// The ways to one port by the node's addresses.
fn render_node_port(nat: &mut Table, service: &Service, transport: Transport, by_node: &str) {
    let svc = chain("SVC", service, transport);
    let xlb = chain("XLB", service, transport);
    match service.policy {
        Policy::Cluster => {
            nat.rule("KUBE-NODEPORTS", &format!("{by_node} -j KUBE-MARK-MASQ"));
            nat.rule("KUBE-NODEPORTS", &format!("{by_node} -j {svc}"));
        }
        Policy::Local => {
            nat.chain(&xlb);
            let loopback = match service.family() {
                Family::V4 => "127.0.0.0/8",
                Family::V6 => "::1/128",
            };
            nat.rule(
                "KUBE-NODEPORTS",
                &format!("{by_node} -s {loopback} -j KUBE-MARK-MASQ"),
            );
            nat.rule("KUBE-NODEPORTS", &format!("{by_node} -j {xlb}"));
        }
    }
}

/// The chains of the backends of one port.
fn render_backends(nat: &mut Table, service: &Service, transport: Transport, seps: &[String]) {
    let protocol = transport.name();
    for (sep, backend) in seps.iter().zip(&service.backends) {
        nat.rule(
            sep,
            &format!("-s {} -j KUBE-MARK-MASQ", host(backend.address)),
        );
        let remember = if service.sticky {
            format!("-m recent --name {sep} --set ")
        } else {
            String::new()
        };
        let to = SocketAddr::new(backend.address, BACKEND_PORT);
        nat.rule(
            sep,
            &format!("{remember}-p {protocol} -m {protocol} -j DNAT --to-destination {to}"),
        );
    }
}

/// The way to the backends on this node, for clients beyond it.
fn render_local(nat: &mut Table, service: &Service, transport: Transport, seps: &[String]) {
    let svc = chain("SVC", service, transport);
    let xlb = chain("XLB", service, transport);
    for to in ["KUBE-MARK-MASQ", &svc] {
        nat.rule(&xlb, &format!("-m addrtype --src-type LOCAL -j {to}"));
    }
    let here = seps.iter().zip(&service.backends);
    let here: Vec<_> = here
        .filter(|(_, backend)| backend.here)
        .map(|(sep, _)| sep.clone())
        .collect();
    if here.is_empty() {
        nat.rule(&xlb, "-j KUBE-MARK-DROP");
    }
    if service.sticky {
        for sep in &here {
            nat.rule(&xlb, &stay(sep));
        }
    }
    balance(nat, &xlb, &here);
}

/// One port of one service.
fn render(nat: &mut Table, filter: &mut Table, service: &Service, transport: Transport) {
    let protocol = transport.name();
    let by_address = format!(
        "-d {} -p {protocol} -m {protocol} --dport {SERVICE_PORT}",
        host(service.address)
    );
    let by_node = format!(
        "-p {protocol} -m {protocol} --dport {}",
        service.node_port()
    );
    if service.backends.is_empty() {
        filter.rule("KUBE-SERVICES", &format!("{by_address} -j REJECT"));
        let local = format!("-m addrtype --dst-type LOCAL {by_node} -j REJECT");
        filter.rule("KUBE-EXTERNAL-SERVICES", &local);
        return;
    }
    let svc = chain("SVC", service, transport);
    nat.chain(&svc);
    nat.rule("KUBE-SERVICES", &format!("{by_address} -j {svc}"));
    render_node_port(nat, service, transport, &by_node);
    let seps: Vec<_> = (0..service.backends.len())
        .map(|index| format!("{}-{index}", chain("SEP", service, transport)))
        .collect();
    for sep in &seps {
        nat.chain(sep);
        if service.sticky {
            nat.rule(&svc, &stay(sep));
        }
    }
    balance(nat, &svc, &seps);
    render_backends(nat, service, transport, &seps);
    if service.policy == Policy::Local {
        render_local(nat, service, transport, &seps);
    }
}

/// Host ports, as the portmap plugin writes them (containernetworking-plugins 1.1).
pub(crate) fn portmap(served: &Served) -> String {
    let mut nat = Table::new("nat");
    for name in [
        "CNI-HOSTPORT-DNAT",
        "CNI-HOSTPORT-SETMARK",
        "CNI-HOSTPORT-MASQ",
    ] {
        nat.chain(name);
    }
    for from in ["PREROUTING", "OUTPUT"] {
        nat.rule(from, "-m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT");
    }
    nat.rule("POSTROUTING", "-j CNI-HOSTPORT-MASQ");
    nat.rule("CNI-HOSTPORT-SETMARK", "-j MARK --set-xmark 0x2000/0x2000");
    nat.rule(
        "CNI-HOSTPORT-MASQ",
        "-m mark --mark 0x2000/0x2000 -j MASQUERADE",
    );
    for (index, host_port) in served.host_ports.iter().enumerate() {
        let dnat = format!("CNI-DN-{index}");
        nat.chain(&dnat);
        let port = host_port.port;
        for transport in Transport::ALL {
            let protocol = transport.name();
            nat.rule(
                "CNI-HOSTPORT-DNAT",
                &format!("-p {protocol} -m multiport --dports {port} -j {dnat}"),
            );
            let matches = format!("-p {protocol} -m {protocol} --dport {port}");
            nat.rule(
                &dnat,
                &format!(
                    "-s {} {matches} -j CNI-HOSTPORT-SETMARK",
                    host(host_port.pod)
                ),
            );
            if served.family == Family::V4 {
                let loopback = format!("-s 127.0.0.1/32 {matches} -j CNI-HOSTPORT-SETMARK");
                nat.rule(&dnat, &loopback);
            }
            let to = SocketAddr::new(host_port.pod, BACKEND_PORT);
            nat.rule(&dnat, &format!("{matches} -j DNAT --to-destination {to}"));
        }
    }
    nat.text()
}

/// Rules of the node-local DNS cache: its traffic is not tracked.
pub(crate) fn local_dns(served: &Served) -> String {
    let (mut raw, mut filter) = (Table::new("raw"), Table::new("filter"));
    for address in &served.local_dns {
        for transport in Transport::ALL {
            let [to, from] = ends(*address, transport);
            for (chain, end) in [("PREROUTING", &to), ("OUTPUT", &from), ("OUTPUT", &to)] {
                raw.rule(chain, &format!("{end} -j CT --notrack"));
            }
            filter.rule("INPUT", &format!("{to} -j ACCEPT"));
            filter.rule("OUTPUT", &format!("{from} -j ACCEPT"));
        }
    }
    raw.text() + &filter.text()
}

/// Matches for the packets to, and for those from, the DNS of an address.
fn ends(address: IpAddr, transport: Transport) -> [String; 2] {
    let protocol = transport.name();
    [("d", "dport"), ("s", "sport")].map(|(address_flag, port_flag)| {
        format!(
            "-{address_flag} {} -p {protocol} -m {protocol} --{port_flag} {DNS_PORT}",
            host(address)
        )
    })
}
