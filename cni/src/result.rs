//! Results of ADD, in the shape of each version of the specification.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::agent::wire::{Attachment, Family, LeasedAddress};
use crate::request::config::{Config, PreviousResult};
use crate::spec::SpecVersion;

/// The gateway that IPv6 has on a host: that of our own pods (`loader/src/constants.rs`).
const LINK_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// A container's interface that the agent has attached.
#[derive(Clone, Copy, Debug)]
pub struct Interface<'a> {
    /// Its name.
    pub name: &'a str,
    /// The container's network namespace.
    pub netns: &'a Path,
    /// The agent's answer.
    pub attachment: &'a Attachment,
}

/// The result of an ADD that made an interface, after the chain's former result.
#[must_use]
pub fn of_attachment(config: &Config, interface: Interface<'_>, dns: &Value) -> Value {
    let Interface {
        name,
        netns,
        attachment,
    } = interface;
    let version = config.version;
    let before = |key| {
        config
            .previous
            .as_ref()
            .map(|previous| previous.list(key).to_vec())
            .unwrap_or_default()
    };
    let mut interfaces = before("interfaces");
    let mut host = json!({"name": attachment.host_device, "mac": attachment.host_mac});
    let mut pod = json!({"name": name, "mac": attachment.pod_mac, "sandbox": netns});
    if version.has_mtu() {
        host["mtu"] = json!(attachment.mtu);
        pod["mtu"] = json!(attachment.mtu);
    }
    let position = interfaces.len() + 1;
    interfaces.extend([host, pod]);

    let (mut ips, mut routes) = (before("ips"), before("routes"));
    for address in &attachment.addresses {
        let mut ip = ip(version, address.address.into(), Some(address.pod_gateway));
        ip["interface"] = json!(position);
        ips.push(ip);
        routes.push(default_route(address.pod_gateway));
    }
    json!({
        "cniVersion": version.name(),
        "interfaces": interfaces,
        "ips": ips,
        "routes": routes,
        "dns": merged_dns(dns, config.previous.as_ref()),
    })
}

/// The result of the IPAM plugin: no interfaces, and none that an address would name.
#[must_use]
pub fn of_lease(config: &Config, addresses: &[LeasedAddress]) -> Value {
    let mut ips = Vec::new();
    let mut routes = Vec::new();
    for leased in addresses {
        let family = Family::of(leased.address);
        let gateway = match config.requested.gateways.given.get(&family) {
            Some(gateway) => Some(*gateway),
            None if config.requested.gateways.on_host && family == Family::Ipv6 => Some(LINK_LOCAL),
            None => leased.gateway,
        };
        ips.push(ip(config.version, in_subnet(leased), gateway));
        routes.extend(gateway.map(default_route));
    }
    json!({
        "cniVersion": config.version.name(),
        "ips": ips,
        "routes": routes,
        "dns": config.requested.dns,
    })
}

fn ip(version: SpecVersion, address: IpNet, gateway: Option<IpAddr>) -> Value {
    let mut ip = json!({"address": address});
    if let Some(gateway) = gateway {
        ip["gateway"] = json!(gateway);
    }
    if version.names_family() {
        ip["version"] = json!(match Family::of(address.addr()) {
            Family::Ipv4 => "4",
            Family::Ipv6 => "6",
        });
    }
    ip
}

fn default_route(gateway: IpAddr) -> Value {
    let everything = match Family::of(gateway) {
        Family::Ipv4 => "0.0.0.0/0",
        Family::Ipv6 => "::/0",
    };
    json!({"dst": everything, "gw": gateway})
}

/// The address with its subnet's mask; alone where it is of none: of a plain pool, of the other
/// family, or of a prefix that the VPC delivers to an ENI from elsewhere.
fn in_subnet(leased: &LeasedAddress) -> IpNet {
    let alone = IpNet::from(leased.address);
    leased
        .subnet
        .filter(|subnet| subnet.contains(&leased.address))
        .and_then(|subnet| IpNet::new(leased.address, subnet.prefix_len()).ok())
        .unwrap_or(alone)
}

/// The configuration's, or what a plugin before us gave.
fn merged_dns(dns: &Value, previous: Option<&PreviousResult>) -> Value {
    let is_empty = dns.as_object().is_none_or(serde_json::Map::is_empty);
    match previous.and_then(|previous| previous.get("dns")) {
        Some(before) if is_empty => before.clone(),
        _ => dns.clone(),
    }
}
