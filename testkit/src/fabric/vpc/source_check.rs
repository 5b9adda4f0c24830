//! The cloud's source check: packets that an ENI sends with a foreign source are dropped and
//! counted. Packets that pass are recorded by flow, so that a test can find the ENI of a flow.
//!
//! One nft table for each ENI, on the VPC's side of it. It sees frames before the router does. All
//! nodes' ENIs are there by their keys.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::Value;

use super::nft_set;
use crate::fabric::command;
use crate::fabric::layout::{Eni, of_key};
use crate::fabric::netns::Netns;

/// An ENI's key and a family.
pub type Cell = (u16, Family);

/// Packets of a flow that passed an ENI's check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// The key of the ENI that the packets left their node by.
    pub eni: u16,
    /// Source.
    pub from: IpAddr,
    /// Destination.
    pub to: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Packets; a GSO packet counts once.
    pub packets: u64,
}

fn suffix(family: Family) -> &'static str {
    match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    }
}

/// Types of packets that come from `::` and link-local addresses and are not foreign.
const DISCOVERY: &str = "{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert, \
     mld-listener-report, mld-listener-done, mld2-listener-report }";

/// The ruleset of one ENI.
///
/// Neighbour discovery and MLD come from `::` and `fe80::/10` (RFC 4861 section 4, RFC 3810 section
/// 5.2.13): they end at the router and are not foreign. Nor are errors about them between
/// link-local addresses. A host sends such an error if its address goes while the router resolves
/// it. An ARP packet with a foreign sender is foreign, as the VPC would learn a wrong address from
/// it. A DHCP client has no address yet (RFC 2131 section 4.1). Foreign packets are recorded in
/// `strange_…`, for diagnosis.
///
/// Rules match these sources by prefix, not by a set: right after a set of intervals is made, it
/// has no element for a packet or two.
#[must_use]
pub fn ruleset(eni: &Eni) -> String {
    let table = eni.router_device();
    let mut text = format!("table netdev {table} {{\n");
    for family in Family::ALL {
        let name = suffix(family);
        let kind = match family {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        };
        let sources: Vec<_> = eni
            .sources(family)
            .iter()
            .map(ToString::to_string)
            .collect();
        let elements = match sources.as_slice() {
            [] => String::new(),
            sources => format!("elements = {{ {} }}", sources.join(", ")),
        };
        // Writing to a string cannot fail.
        let _infallible = writeln!(
            text,
            "  counter foreign_{name} {{}}\n  \
               set own_{name} {{ type {kind}; flags interval; {elements} }}\n  \
               set flows_{name} {{ type {kind} . {kind} . inet_proto; flags dynamic; \
               size 65535; counter; }}\n  \
               set strange_{name} {{ type {kind} . {kind} . inet_proto; flags dynamic; \
               size 1024; counter; }}"
        );
    }
    let _infallible = write!(
        text,
        "  counter discovery {{}}
  chain ingress {{
    type filter hook ingress device \"{table}\" priority 0; policy accept;
    ip6 saddr :: icmpv6 type {DISCOVERY} counter name discovery accept
    ip6 saddr fe80::/10 icmpv6 type {DISCOVERY} counter name discovery accept
    ip6 saddr fe80::/10 ip6 daddr fe80::/10 icmpv6 type {{ destination-unreachable, time-exceeded, \
         parameter-problem }} counter name discovery accept
    arp saddr ip 0.0.0.0 accept
    ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept
    arp operation {{ request, reply }} arp saddr ip != @own_v4 counter name foreign_v4 drop
    ip saddr != @own_v4 update @strange_v4 {{ ip saddr . ip daddr . meta l4proto }} \
         counter name foreign_v4 drop
    ip6 saddr != @own_v6 update @strange_v6 {{ ip6 saddr . ip6 daddr . meta l4proto }} \
         counter name foreign_v6 drop
    update @flows_v4 {{ ip saddr . ip daddr . meta l4proto }}
    update @flows_v6 {{ ip6 saddr . ip6 daddr . meta l4proto }}
  }}
}}
"
    );
    text
}

/// Installs the check on an ENI, or installs it again and resets its counts.
///
/// # Errors
/// When nft refuses.
pub fn install(router: &Netns, eni: &Eni) -> Result<()> {
    let table = eni.router_device();
    let ruleset = format!(
        "table netdev {table}\ndelete table netdev {table}\n{}",
        ruleset(eni)
    );
    command::run_with_input(router.command("nft").args(["-f", "-"]), &ruleset)?;
    Ok(())
}

/// Updates the addresses of an ENI in its check.
///
/// # Errors
/// When nft refuses.
pub fn renew(router: &Netns, eni: &Eni) -> Result<()> {
    let table = format!("netdev {}", eni.router_device());
    for family in Family::ALL {
        let set = format!("own_{}", suffix(family));
        nft_set::renew(router, &table, &set, &eni.sources(family))?;
    }
    Ok(())
}

/// The packets that the checks dropped, for each ENI that has a check.
///
/// # Errors
/// When nft fails or answers something unknown.
pub fn foreign(router: &Netns) -> Result<BTreeMap<Cell, u64>> {
    let answer = nft_json(router, &["list", "counters"])?;
    let mut counts = BTreeMap::new();
    for counter in objects(&answer, "counter") {
        let Some(eni) = eni_of(counter) else { continue };
        let name = counter["name"].as_str().unwrap_or_default();
        for family in Family::ALL {
            if name.strip_prefix("foreign_") == Some(suffix(family)) {
                let packets = counter["packets"]
                    .as_u64()
                    .context("packets of a counter")?;
                counts.insert((eni, family), packets);
            }
        }
    }
    Ok(counts)
}

/// Neighbour discovery and MLD that passed because they are not foreign, by ENI.
///
/// # Errors
/// As [`foreign`].
pub fn discovery(router: &Netns) -> Result<BTreeMap<u16, u64>> {
    let answer = nft_json(router, &["list", "counters"])?;
    let counters = objects(&answer, "counter").filter(|counter| counter["name"] == "discovery");
    Ok(counters
        .filter_map(|counter| Some((eni_of(counter)?, counter["packets"].as_u64()?)))
        .collect())
}

/// Resets all counts of a node's ENIs and forgets their flows. Nodes count from 0.
///
/// # Errors
/// When nft fails.
pub fn reset(router: &Netns, node: u8) -> Result<()> {
    let is_its = |key: u16| is_of(node, key);
    let checks = foreign(router)?.into_keys().map(|(key, _)| key);
    for key in checks.filter(|key| is_its(*key)).collect::<BTreeSet<_>>() {
        let table = format!("eni{key}");
        nft_json(router, &["reset", "counters", "table", "netdev", &table])?;
    }
    forget(router, is_its)
}

/// True where the ENI of a key is a node's. Nodes count from 0.
#[must_use]
pub fn is_of(node: u8, key: u16) -> bool {
    of_key(key).0 == u16::from(node)
}

/// Forgets the flows seen so far, of all nodes.
///
/// # Errors
/// When nft fails.
pub fn forget_flows(router: &Netns) -> Result<()> {
    forget(router, |_| true)
}

fn forget(router: &Netns, is_wanted: impl Fn(u16) -> bool) -> Result<()> {
    let mut commands = String::new();
    for set in objects(&nft_json(router, &["list", "sets"])?, "set") {
        let (Some(key), Some(name)) = (eni_of(set), set["name"].as_str()) else {
            continue;
        };
        if is_wanted(key) && name.starts_with("flows_") {
            let _infallible = writeln!(commands, "flush set netdev eni{key} {name}");
        }
    }
    command::run_with_input(router.command("nft").args(["-f", "-"]), &commands)?;
    Ok(())
}

/// The flows that left by the ENIs since the last reset.
///
/// # Errors
/// When nft fails or answers something unknown.
pub fn flows(router: &Netns) -> Result<Vec<Flow>> {
    elements(router, "flows_", eni_of)
}

/// The packets that the checks dropped since they were last installed, from their sets.
///
/// # Errors
/// As [`flows()`].
pub fn strange(router: &Netns) -> Result<Vec<Flow>> {
    elements(router, "strange_", eni_of)
}

/// The flows with new packets between two readings, with the numbers of those packets.
#[must_use]
pub fn moved(before: &[Flow], after: &[Flow]) -> Vec<Flow> {
    let earlier = |flow: &Flow| {
        let same = |other: &&Flow| {
            Flow {
                packets: 0,
                ..**other
            } == Flow {
                packets: 0,
                ..*flow
            }
        };
        before.iter().find(same).map_or(0, |flow| flow.packets)
    };
    let added = after.iter().map(|flow| Flow {
        packets: flow.packets.saturating_sub(earlier(flow)),
        ..*flow
    });
    added.filter(|flow| flow.packets > 0).collect()
}

/// The elements of all sets with this prefix, in tables that `eni` gives a key. Where elements
/// begin with a device of the router, the key comes from the device.
pub(super) fn elements(
    netns: &Netns,
    prefix: &str,
    eni: impl Fn(&Value) -> Option<u16>,
) -> Result<Vec<Flow>> {
    let answer = nft_json(netns, &["list", "ruleset"])?;
    let mut flows = Vec::new();
    for set in objects(&answer, "set") {
        let is_wanted = set["name"]
            .as_str()
            .is_some_and(|name| name.starts_with(prefix));
        let (true, Some(eni)) = (is_wanted, eni(set)) else {
            continue;
        };
        for element in set["elem"].as_array().into_iter().flatten() {
            let flow = flow(eni, &element["elem"]);
            flows.push(flow.with_context(|| format!("a flow in nft's answer: {element}"))?);
        }
    }
    flows.sort();
    Ok(flows)
}

/// The ENIs, by key, by which packets between two addresses left their nodes since the last reset.
///
/// Packets to one of the two may carry one of `translations` for the other.
///
/// # Errors
/// As [`flows()`].
pub fn enis_between(
    router: &Netns,
    one: IpAddr,
    other: IpAddr,
    translations: &[IpAddr],
) -> Result<BTreeSet<u16>> {
    let ends = [one, other];
    let mut flows = flows(router)?;
    flows.retain(|flow| {
        ends.contains(&flow.to) && (ends.contains(&flow.from) || translations.contains(&flow.from))
    });
    Ok(flows.into_iter().map(|flow| flow.eni).collect())
}

fn flow(eni: u16, element: &Value) -> Option<Flow> {
    let parts = element["val"]["concat"].as_array()?;
    let [device @ .., from, to, protocol] = parts.as_slice() else {
        return None;
    };
    let protocol = match protocol {
        Value::Number(number) => u8::try_from(number.as_u64()?).ok()?,
        other => other.as_str()?.parse().ok()?,
    };
    Some(Flow {
        eni: match device {
            [] => eni,
            [device, ..] => key_of(device)?,
        },
        from: from.as_str()?.parse().ok()?,
        to: to.as_str()?.parse().ok()?,
        protocol,
        packets: element["counter"]["packets"].as_u64()?,
    })
}

/// Runs nft with numbers instead of names, and JSON.
pub(super) fn nft_json(router: &Netns, words: &[&str]) -> Result<Value> {
    let text = command::run(router.command("nft").args(["-n", "-j"]).args(words))?;
    serde_json::from_str(&text).with_context(|| format!("nft -j {words:?}"))
}

pub(super) fn objects<'a>(answer: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let list = answer["nftables"].as_array().into_iter().flatten();
    list.filter_map(move |object| object.get(kind))
}

fn eni_of(object: &Value) -> Option<u16> {
    key_of(&object["table"])
}

/// The key of the ENI that a device or a table of the router belongs to.
fn key_of(name: &Value) -> Option<u16> {
    name.as_str()?.strip_prefix("eni")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::layout::Addressing;

    #[test]
    fn an_eni_without_addresses_of_a_family_has_an_empty_set() {
        let mut eni = Eni::new(1, Addressing::Prefixes);
        eni.blocks.clear();
        let text = ruleset(&eni);
        assert!(
            text.contains("set own_v4 { type ipv4_addr; flags interval; elements = { 10.0.1.10")
        );
        assert!(
            text.contains("set own_v6 { type ipv6_addr; flags interval;  }"),
            "{text}"
        );
    }

    #[test]
    fn what_moved_is_told_by_flow() {
        let flow = |eni, packets| Flow {
            eni,
            from: [10, 0, 0, 20].into(),
            to: [10, 0, 200, 10].into(),
            protocol: 6,
            packets,
        };
        let (before, after) = (
            [flow(0, 3), flow(1, 2)],
            [flow(0, 5), flow(1, 2), flow(2, 1)],
        );
        assert_eq!(moved(&before, &after), [flow(0, 2), flow(2, 1)]);
    }

    #[test]
    fn flows_are_read_with_number_or_text() {
        let element = serde_json::json!({
            "val": {"concat": ["10.0.0.20", "10.0.200.10", 6]},
            "counter": {"packets": 3, "bytes": 180}
        });
        let read = flow(1, &element).unwrap();
        assert_eq!((read.eni, read.protocol, read.packets), (1, 6, 3));
        assert_eq!(flow(1, &serde_json::json!({})), None);
        let element = serde_json::json!({
            "val": {"concat": ["eni101", "10.0.0.20", "8.8.4.10", 6]},
            "counter": {"packets": 1, "bytes": 60}
        });
        assert_eq!(flow(0, &element).unwrap().eni, 101);
    }
}
