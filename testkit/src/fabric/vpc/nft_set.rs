//! An nft set whose elements change under traffic.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde_json::Value;

use super::source_check::{nft_json, objects};
use crate::fabric::command;
use crate::fabric::netns::Netns;

/// Makes a set of intervals hold exactly these addresses. Those that it holds before and after are
/// matched at every moment. A new set, or one whose elements change in one transaction, may for a
/// moment match none of them.
///
/// # Errors
/// When nft refuses or answers something unknown.
pub(super) fn renew(netns: &Netns, table: &str, set: &str, wanted: &[IpNet]) -> Result<()> {
    let mut list: Vec<&str> = vec!["list", "set"];
    list.extend(table.split(' ').chain([set]));
    let present = present(&nft_json(netns, &list)?)?;
    for script in scripts(table, set, &present, wanted) {
        command::run_with_input(netns.command("nft").args(["-f", "-"]), &script)?;
    }
    Ok(())
}

/// The transactions for that: additions come first, unless they overlap with removals.
fn scripts(table: &str, set: &str, present: &[IpNet], wanted: &[IpNet]) -> Vec<String> {
    let missing = wanted.iter().filter(|net| !present.contains(net));
    let gone: Vec<_> = present.iter().filter(|net| !wanted.contains(net)).collect();
    let overlaps = |net: &&IpNet| {
        let meets = |other: &&IpNet| other.contains(*net) || net.contains(*other);
        gone.iter().any(meets)
    };
    let (late, first): (Vec<_>, Vec<_>) = missing.partition(overlaps);
    let line = |verb: &str, nets: &[&IpNet]| match nets {
        [] => String::new(),
        some => {
            let elements: Vec<_> = some.iter().map(ToString::to_string).collect();
            let elements = elements.join(", ");
            format!("{verb} element {table} {set} {{ {elements} }}\n")
        }
    };
    let second = line("delete", &gone) + &line("add", &late);
    let mut scripts = vec![line("add", &first), second];
    scripts.retain(|script| !script.is_empty());
    scripts
}

/// The elements in an answer of nft.
fn present(answer: &Value) -> Result<Vec<IpNet>> {
    let elements = objects(answer, "set").filter_map(|set| set["elem"].as_array());
    elements
        .flatten()
        .map(|element| net(element).with_context(|| format!("an element of a set: {element}")))
        .collect()
}

fn net(element: &Value) -> Option<IpNet> {
    if let Some(address) = element.as_str() {
        let address: IpAddr = address.parse().ok()?;
        return Some(address.into());
    }
    let prefix = &element["prefix"];
    let length = u8::try_from(prefix["len"].as_u64()?).ok()?;
    IpNet::new(prefix["addr"].as_str()?.parse().ok()?, length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn what_stays_is_in_no_transaction() {
        let present = nets(&["10.0.0.1/32", "10.0.0.16/28", "10.0.0.2/32"]);
        let wanted = nets(&["10.0.0.1/32", "10.0.0.0/29", "10.0.1.0/28"]);
        assert_eq!(
            scripts("netdev eni1", "own_v4", &present, &wanted),
            [
                "add element netdev eni1 own_v4 { 10.0.1.0/28 }\n",
                "delete element netdev eni1 own_v4 { 10.0.0.16/28, 10.0.0.2/32 }\n\
                 add element netdev eni1 own_v4 { 10.0.0.0/29 }\n"
            ]
        );
        assert!(scripts("netdev eni1", "own_v4", &present, &present).is_empty());
    }

    #[test]
    fn a_set_is_renewed_in_the_kernel() {
        let netns = Netns::create(&format!("tp-{}-set", std::process::id())).unwrap();
        let table = "add table inet t\nadd set inet t own { type ipv6_addr; flags interval; }\n";
        command::run_with_input(netns.command("nft").args(["-f", "-"]), table).unwrap();
        for list in [
            &["2600::10/128", "2600:0:0:1::/80"][..],
            &["2600::10/128", "2600::12/128"],
            &["2600::/64"],
            &[],
        ] {
            let wanted = nets(list);
            renew(&netns, "inet t", "own", &wanted).unwrap();
            let answer = nft_json(&netns, &["list", "set", "inet", "t", "own"]).unwrap();
            let mut present = present(&answer).unwrap();
            present.sort();
            let mut wanted = wanted;
            wanted.sort();
            assert_eq!(present, wanted);
        }
    }
}
