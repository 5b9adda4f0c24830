//! Security groups of a VPC. The router forwards a packet to an interface only if one of the
//! interface's groups admits its source.
//!
//! As in EC2, groups are stateful: answers are always admitted. A rule names sources by their
//! groups, and an address has the groups of the interface that owns it. Packets between two pods of
//! one node do not reach the router.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use ipam::Family;
use ipnet::IpNet;

use super::source_check::{nft_json, objects};
use crate::fabric::command;
use crate::fabric::layout::{Eni, Host};
use crate::fabric::netns::Netns;

/// The router's table.
const TABLE: &str = "inet groups";

/// The sources that a group admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admits {
    /// All.
    All,
    /// Interfaces of these groups.
    Groups(&'static [&'static str]),
}

/// A security group.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Its id.
    pub id: &'static str,
    /// The sources that it admits.
    pub admits: Admits,
}

/// An interface of the VPC with its groups.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The router's device towards it.
    device: String,
    groups: Vec<String>,
    addresses: Vec<IpNet>,
}

impl Interface {
    /// An ENI of a node.
    #[must_use]
    pub fn of_eni(eni: &Eni, groups: &[String]) -> Self {
        let families = Family::ALL.iter();
        Self {
            device: eni.router_device(),
            groups: groups.to_vec(),
            addresses: families.flat_map(|family| eni.sources(*family)).collect(),
        }
    }

    /// A host of the VPC.
    #[must_use]
    pub fn of_host(host: Host, group: &str) -> Self {
        let addresses = Family::ALL.iter().map(|family| host.address(*family));
        Self {
            device: host.name().to_owned(),
            groups: vec![group.to_owned()],
            addresses: addresses.map(IpNet::from).collect(),
        }
    }
}

/// Makes the router enforce groups. Calling it again replaces all rules in one transaction, and
/// keeps the counts of refused packets.
///
/// # Errors
/// When nft refuses.
pub fn enforce(router: &Netns, groups: &[Group], interfaces: &[Interface]) -> Result<()> {
    let script = script(groups, interfaces);
    command::run_with_input(router.command("nft").args(["-f", "-"]), &script).map(drop)
}

/// Number of packets to an interface that its groups refused.
///
/// # Errors
/// When nft fails, or the router does not enforce groups of the interface.
pub fn refused(router: &Netns, device: &str) -> Result<u64> {
    let name = counter(device);
    let words: Vec<&str> = ["list", "counter"]
        .into_iter()
        .chain(TABLE.split(' '))
        .chain([name.as_str()])
        .collect();
    let answer = nft_json(router, &words)?;
    let packets = objects(&answer, "counter").find_map(|it| it["packets"].as_u64());
    packets.with_context(|| format!("no count of refused packets to {device}"))
}

fn counter(device: &str) -> String {
    format!("refused_{device}")
}

/// The commands that replace all rules. The base chain stays registered, so no packet passes in
/// between.
fn script(groups: &[Group], interfaces: &[Interface]) -> String {
    let mut script = format!(
        "add table {TABLE}\n\
         add chain {TABLE} forward {{ type filter hook forward priority 0; policy accept; }}\n\
         flush table {TABLE}\n\
         add rule {TABLE} forward ct state established,related accept\n"
    );
    for interface in interfaces {
        let device = &interface.device;
        let of_interface = groups
            .iter()
            .filter(|group| interface.groups.iter().any(|id| id == group.id));
        let mut rules = String::new();
        for group in of_interface {
            let sources = match group.admits {
                Admits::All => vec![String::new()],
                Admits::Groups(ids) => sources(interfaces, ids),
            };
            for source in sources {
                // Writing to a string cannot fail.
                let _infallible = writeln!(
                    rules,
                    "add rule {TABLE} forward oifname \"{device}\" {source}accept"
                );
            }
        }
        let counter = counter(device);
        let _infallible = write!(
            script,
            "add counter {TABLE} {counter}\n\
             {rules}\
             add rule {TABLE} forward oifname \"{device}\" counter name \"{counter}\" drop\n"
        );
    }
    script
}

/// Matches of the addresses of interfaces in any of these groups. They are rules, not elements of a
/// set: a set of intervals may match nothing right after its change.
fn sources(interfaces: &[Interface], groups: &[&str]) -> Vec<String> {
    let is_member = |it: &&Interface| it.groups.iter().any(|id| groups.contains(&id.as_str()));
    let addresses = interfaces.iter().filter(is_member);
    let addresses = addresses.flat_map(|interface| &interface.addresses);
    addresses
        .map(|net| match Family::of_net(*net) {
            Family::V4 => format!("ip saddr {net} "),
            Family::V6 => format!("ip6 saddr {net} "),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::layout::Addressing;

    const GROUPS: [Group; 2] = [
        Group {
            id: "sg-open",
            admits: Admits::All,
        },
        Group {
            id: "sg-closed",
            admits: Admits::Groups(&["sg-open"]),
        },
    ];

    fn interfaces() -> [Interface; 2] {
        let mut eni = Eni::new(1, Addressing::Prefixes);
        eni.blocks.truncate(1);
        [
            Interface::of_eni(&eni, &["sg-open".to_owned()]),
            Interface::of_host(Host::Peer, "sg-closed"),
        ]
    }

    #[test]
    fn an_interface_admits_the_sources_of_its_groups_alone() {
        let script = script(&GROUPS, &interfaces());
        let rules: Vec<&str> = script.lines().filter(|it| it.contains("oifname")).collect();
        let expected = [
            "add rule inet groups forward oifname \"eni1\" accept",
            "add rule inet groups forward oifname \"eni1\" counter name \"refused_eni1\" drop",
            "add rule inet groups forward oifname \"peer\" ip saddr 10.0.1.10/32 accept",
            "add rule inet groups forward oifname \"peer\" ip saddr 10.0.1.64/28 accept",
            "add rule inet groups forward oifname \"peer\" counter name \"refused_peer\" drop",
        ];
        assert_eq!(rules, expected);
    }

    #[test]
    fn a_router_takes_the_rules_and_keeps_the_counts() {
        let router = Netns::create(&format!("tp-{}-groups", std::process::id())).unwrap();
        for _ in 0..2 {
            enforce(&router, &GROUPS, &interfaces()).unwrap();
            assert_eq!(refused(&router, "peer").unwrap(), 0);
        }
        let rules = router.run("nft list chain inet groups forward").unwrap();
        assert_eq!(rules.matches("oifname").count(), 5, "{rules}");
        refused(&router, "eni7").unwrap_err();
    }
}
