//! Objects in the words that `ip` and `sysctl` use.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use ipam::Family;

use super::{Action, Link, MapEntry, NextHop, Object, Route, Rule, Selector, Sysctl, SysctlScope};
use crate::intent::masquerade::class_names;

impl Object {
    /// The object as a line of text; devices by name where they are among `links`.
    #[must_use]
    pub fn describe(&self, links: &BTreeMap<u32, Link>) -> String {
        let dev = |ifindex| Device { ifindex, links };
        match *self {
            Self::Sysctl(sysctl, value) => format!("{} = {value}", sysctl_name(sysctl, links)),
            Self::ReservedPorts(ports) => {
                format!("net.ipv4.ip_local_reserved_ports has {}", ports.reserved())
            }
            Self::Mtu { ifindex, mtu } => format!("link {} mtu {mtu}", dev(ifindex)),
            Self::Up(ifindex) => format!("link {} up", dev(ifindex)),
            Self::Device(id) => format!("link {} type veth", id.device()),
            Self::Address(address) => format!("{} dev {}", address.net, dev(address.ifindex)),
            Self::Route(route) => route_text(route, links),
            Self::Rule(rule) => rule_text(rule),
            Self::Neighbour(neighbour) => format!(
                "{} dev {} lladdr {} PERMANENT",
                neighbour.address,
                dev(neighbour.ifindex),
                neighbour.mac
            ),
            Self::MapEntry(entry) => map_entry_text(entry, links),
            Self::Attachment(hook) => {
                format!(
                    "{} at {} of {}",
                    hook.program.name(),
                    hook.direction().name(),
                    dev(hook.ifindex)
                )
            }
        }
    }
}

/// A device by its name, or `if7` where it is gone.
struct Device<'a> {
    ifindex: u32,
    links: &'a BTreeMap<u32, Link>,
}

impl fmt::Display for Device<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.links.get(&self.ifindex) {
            Some(link) => f.write_str(link.kernel_name()),
            None => write!(f, "if{}", self.ifindex),
        }
    }
}

fn sysctl_name(sysctl: Sysctl, links: &BTreeMap<u32, Link>) -> String {
    let family = match sysctl.family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    match sysctl.scope {
        SysctlScope::Device(ifindex) => {
            let device = Device { ifindex, links };
            format!("net.{family}.conf.{device}.{}", sysctl.name)
        }
        SysctlScope::All => format!("net.{family}.conf.all.{}", sysctl.name),
        SysctlScope::Family => format!("net.{family}.{}", sysctl.name),
    }
}

fn route_text(route: Route, links: &BTreeMap<u32, Link>) -> String {
    let destination = if route.destination.prefix_len() == 0 {
        "default".to_owned()
    } else if route.destination.prefix_len() == route.destination.max_prefix_len() {
        route.destination.addr().to_string()
    } else {
        route.destination.to_string()
    };
    let mut text = match route.next_hop {
        NextHop::Device(ifindex) => {
            format!("{destination} dev {} scope link", Device { ifindex, links })
        }
        NextHop::Gateway(gateway, ifindex) => {
            let device = Device { ifindex, links };
            format!("{destination} via {gateway} dev {device} onlink")
        }
        NextHop::Unreachable => format!("unreachable {destination}"),
        NextHop::Throw => format!("throw {destination}"),
    };
    if let Some(source) = route.source {
        // Writing to a String cannot fail.
        write!(text, " src {source}").unwrap_or_default();
    }
    if route.metric != 0 {
        write!(text, " metric {}", route.metric).unwrap_or_default();
    }
    let v6_default = route.destination == Family::V6.default_route();
    let family = if v6_default { " (inet6)" } else { "" };
    format!("{text} table {}{family}", route.table)
}

fn rule_text(rule: Rule) -> String {
    let selector = match rule.selector {
        Selector::All => "from all".to_owned(),
        Selector::Mark { value, mask } => format!("from all fwmark {value:#x}/{mask:#x}"),
        Selector::Source(net) => format!("from {net}"),
        Selector::Foreign => "from ?".to_owned(),
    };
    let action = match rule.action {
        Action::Table(table) => format!("lookup {table}"),
        Action::Goto(priority) => format!("goto {priority}"),
        Action::Nop => "nop".to_owned(),
        Action::Foreign => "?".to_owned(),
    };
    let family = match rule.family {
        Family::V4 => "",
        Family::V6 => " (inet6)",
    };
    format!("{}: {selector} {action}{family}", rule.priority)
}

fn map_entry_text(entry: MapEntry, links: &BTreeMap<u32, Link>) -> String {
    match entry {
        MapEntry::Address(address, value) if value.is_endpoint() => {
            let device = Device {
                ifindex: value.ifindex(),
                links,
            };
            let eni = match value.eni_ifindex() {
                0 => "not ready".to_owned(),
                ifindex => Device { ifindex, links }.to_string(),
            };
            format!(
                "ADDRESSES {address} = endpoint dev {device} mtu {} eni {} ({eni})",
                value.mtu(),
                value.eni()
            )
        }
        MapEntry::Address(address, _) => format!("ADDRESSES {address} = host"),
        MapEntry::Destination(net, class) => {
            format!("DESTINATIONS {net} = {}", class_names(class).join(", "))
        }
        MapEntry::Eni(number, value) => {
            let device = Device {
                ifindex: value.ifindex(),
                links,
            };
            format!("ENIS {number} = dev {device} mtu {}", value.mtu())
        }
        MapEntry::EniDevice(ifindex, number) => {
            format!("ENI_BY_IFINDEX {} = {number}", Device { ifindex, links })
        }
    }
}

#[cfg(test)]
mod tests {
    use datapath_common::abi::DestinationClass;

    use super::*;
    use crate::constants;

    fn route(destination: &str, next_hop: NextHop, metric: u32) -> Route {
        Route {
            table: 11,
            destination: destination.parse().unwrap(),
            metric,
            next_hop,
            source: None,
            protocol: 2,
        }
    }

    #[test]
    fn speaks_as_ip_does() {
        let links = BTreeMap::new();
        let gateway = NextHop::Gateway("fe80:ec2::1".parse().unwrap(), 3);
        for (object, text) in [
            (
                Object::Route(route("::/0", gateway, 1024)),
                "default via fe80:ec2::1 dev if3 onlink metric 1024 table 11 (inet6)",
            ),
            (
                Object::Route(Route {
                    source: Some("10.0.0.10".parse().unwrap()),
                    ..route("10.0.1.20/32", NextHop::Device(3), 0)
                }),
                "10.0.1.20 dev if3 scope link src 10.0.0.10 table 11",
            ),
            (
                Object::Route(route("10.0.1.0/28", NextHop::Unreachable, 9000)),
                "unreachable 10.0.1.0/28 metric 9000 table 11",
            ),
            (
                Object::Rule(Rule {
                    family: Family::V6,
                    priority: constants::RULE_SKIP,
                    selector: Selector::Mark {
                        value: 0,
                        mask: 0x3f00_0000,
                    },
                    action: Action::Goto(112),
                    protocol: 2,
                }),
                "110: from all fwmark 0x0/0x3f000000 goto 112 (inet6)",
            ),
            (
                Object::Sysctl(
                    Sysctl {
                        family: Family::V4,
                        scope: SysctlScope::Device(3),
                        name: "rp_filter",
                    },
                    "2",
                ),
                "net.ipv4.conf.if3.rp_filter = 2",
            ),
            (
                Object::MapEntry(MapEntry::Destination(
                    "10.0.0.0/16".parse().unwrap(),
                    DestinationClass::VPC.union(DestinationClass::BLOCK),
                )),
                "DESTINATIONS 10.0.0.0/16 = block of this node, vpc",
            ),
        ] {
            assert_eq!(object.describe(&links), text);
        }
    }
}
