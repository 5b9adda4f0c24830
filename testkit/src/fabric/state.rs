//! The node's network state, as comparable text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use aya::programs::{SchedClassifier, TcAttachType};
use datapath_common::abi::map;
use serde_json::Value;

use super::{Netns, command};

/// Lines by subject. Indexes, ages and counts are left out.
pub type State = BTreeMap<&'static str, BTreeSet<String>>;

/// Maps whose contents change without a change of the node: counters, expiry times of gateways, and
/// the generation of the flow cache.
const MOVING: [&str; 4] = [
    map::COUNTERS,
    map::CACHE_CONTROL,
    map::CACHE_EPOCHS,
    map::GATEWAYS,
];
/// Sysctls of a device that take part in forwarding.
const DEVICE_SYSCTLS: [(&str, &str); 9] = [
    ("ipv4", "rp_filter"),
    ("ipv4", "arp_ignore"),
    ("ipv4", "arp_announce"),
    ("ipv4", "send_redirects"),
    ("ipv4", "forwarding"),
    ("ipv4", "proxy_arp"),
    ("ipv6", "accept_ra"),
    ("ipv6", "forwarding"),
    ("ipv6", "disable_ipv6"),
];

/// Takes the state of a namespace, with the pins below a folder.
///
/// # Errors
/// When a tool fails.
pub fn snapshot(netns: &Netns, pins: &Path) -> Result<State> {
    let devices = devices(netns)?;
    let mut state = State::new();
    for (section, line) in [
        ("rules of IPv4", "ip -4 rule list"),
        ("rules of IPv6", "ip -6 rule list"),
        ("routes of IPv4", "ip -4 -d -o route show table all"),
        ("routes of IPv6", "ip -6 -d -o route show table all"),
        ("addresses", "ip -o addr show"),
        ("links", "ip -o link show"),
        ("neighbours", "ip -4 neigh show nud permanent"),
        ("neighbours", "ip -6 neigh show nud permanent"),
        ("qdiscs", "tc qdisc show"),
    ] {
        let lines = netns.run(line)?;
        state
            .entry(section)
            .or_default()
            .extend(lines.lines().map(normalised));
    }
    for device in &devices {
        for direction in ["ingress", "egress"] {
            let filters = netns.run(&format!("tc filter show dev {device} {direction}"));
            // A device without a clsact qdisc has no filters to show.
            for line in filters.unwrap_or_default().lines() {
                let line = format!("{device} {direction} {}", normalised(line));
                state.entry("filters").or_default().insert(line);
            }
        }
    }
    state.insert("tcx", tcx(netns, &devices)?);
    state.insert("sysctls", sysctls(netns, &devices)?);
    state.insert("maps", maps(pins)?);
    Ok(state)
}

/// Difference between two states: removed lines with `-`, new ones with `+`.
#[must_use]
pub fn difference(before: &State, after: &State) -> String {
    let mut text = String::new();
    let sections: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let none = BTreeSet::new();
    for section in sections {
        let before = before.get(section).unwrap_or(&none);
        let after = after.get(section).unwrap_or(&none);
        for (sign, lines) in [
            ("-", before.difference(after)),
            ("+", after.difference(before)),
        ] {
            for line in lines {
                let _infallible = writeln!(text, "{sign} {section}: {line}");
            }
        }
    }
    text
}

fn devices(netns: &Netns) -> Result<Vec<String>> {
    let links = netns.ip_json("link show")?;
    let names = links.as_array().into_iter().flatten();
    Ok(names
        .filter_map(|link| Some(link["ifname"].as_str()?.to_owned()))
        .collect())
}

/// A line of a tool without values that change by themselves: indexes, peers' indexes, program ids
/// and tags, lifetimes, queue lengths.
fn normalised(line: &str) -> String {
    const WITH_VALUE: [&str; 8] = [
        "expires",
        "id",
        "jited",
        "qlen",
        "tag",
        "valid_lft",
        "preferred_lft",
        "users",
    ];
    let line = match line.split_once(": ") {
        Some((index, rest)) if index.bytes().all(|b| b.is_ascii_digit()) => rest,
        _ => line,
    };
    let mut words = Vec::new();
    let mut skip = false;
    for word in line.split_whitespace() {
        let hold = std::mem::replace(&mut skip, WITH_VALUE.contains(&word));
        if hold || skip {
            continue;
        }
        words.push(word.split_once("@if").map_or(word, |(name, _)| name));
    }
    words.join(" ")
}

/// The programs on each device's TCX hooks, in their order.
fn tcx(netns: &Netns, devices: &[String]) -> Result<BTreeSet<String>> {
    let mut lines = BTreeSet::new();
    netns.enter(|| {
        for device in devices {
            for (name, hook) in [
                ("ingress", TcAttachType::Ingress),
                ("egress", TcAttachType::Egress),
            ] {
                let (_, programs) = SchedClassifier::query_tcx(device, hook)
                    .with_context(|| format!("TCX programs on {device} {name}"))?;
                for (place, program) in programs.iter().enumerate() {
                    let program = program.name_as_str().unwrap_or("?");
                    lines.insert(format!("{device} {name} {place} {program}"));
                }
            }
        }
        Ok(())
    })?;
    Ok(lines)
}

/// The ids of the programs at a device's ingress, in the order in which they run.
///
/// # Errors
/// When the device is missing, and when tc(8) fails.
pub fn program_ids(netns: &Netns, device: &str) -> Result<Vec<u32>> {
    ids(netns, device, TcAttachType::Ingress, "ingress")
}

/// The ids of the programs at a device's egress, in the order in which they run.
///
/// # Errors
/// As [`program_ids`].
pub fn egress_program_ids(netns: &Netns, device: &str) -> Result<Vec<u32>> {
    ids(netns, device, TcAttachType::Egress, "egress")
}

/// The ids of [`program_ids`] that TCX runs.
///
/// # Errors
/// When the device is missing.
pub fn tcx_ids(netns: &Netns, device: &str) -> Result<Vec<u32>> {
    tcx_at(netns, device, TcAttachType::Ingress)
}

fn tcx_at(netns: &Netns, device: &str, hook: TcAttachType) -> Result<Vec<u32>> {
    netns.enter(|| {
        let (_, programs) = SchedClassifier::query_tcx(device, hook)
            .with_context(|| format!("TCX programs on {device}"))?;
        Ok(programs
            .iter()
            .map(aya::programs::ProgramInfo::id)
            .collect())
    })
}

/// The ids of TCX, followed by those of tc's filters.
fn ids(netns: &Netns, device: &str, hook: TcAttachType, name: &str) -> Result<Vec<u32>> {
    let mut ids = tcx_at(netns, device, hook)?;
    let mut tc = netns.command("tc");
    let text = command::run(tc.args(["-j", "filter", "show", "dev", device, name]))?;
    let filters: Value = serde_json::from_str(&text).context("tc's filters")?;
    let filters = filters.as_array().into_iter().flatten();
    let of_filters = filters.filter_map(|filter| filter["options"]["prog"]["id"].as_u64());
    for id in of_filters {
        ids.push(u32::try_from(id)?);
    }
    Ok(ids)
}

fn sysctls(netns: &Netns, devices: &[String]) -> Result<BTreeSet<String>> {
    netns.enter(|| {
        let mut lines = BTreeSet::new();
        let mut read = |key: String| {
            // A device may go at any time, and not every device has every sysctl.
            if let Ok(value) = fs::read_to_string(format!("/proc/sys/net/{key}")) {
                lines.insert(format!("{key} = {}", value.trim()));
            }
        };
        read("ipv4/ip_forward".to_owned());
        let all = ["all", "default"].into_iter();
        for device in all.chain(devices.iter().map(String::as_str)) {
            for (family, name) in DEVICE_SYSCTLS {
                read(format!("{family}/conf/{device}/{name}"));
            }
        }
        Ok(lines)
    })
}

/// The entries of every pinned map, and the names of all pins.
fn maps(pins: &Path) -> Result<BTreeSet<String>> {
    let mut lines = BTreeSet::new();
    let mut folders = vec![pins.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            lines.insert(format!("pin {}", path.strip_prefix(pins)?.display()));
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let in_maps = folder.file_name().is_some_and(|name| name == "maps");
            if in_maps && !MOVING.contains(&name.as_ref()) {
                let mut bpftool = std::process::Command::new("bpftool");
                bpftool.args(["-j", "map", "dump", "pinned"]).arg(&path);
                let dump: Value = serde_json::from_str(&command::run(&mut bpftool)?)?;
                let entries = dump.as_array().into_iter().flatten();
                lines.extend(entries.map(|entry| format!("{name} {}", map_entry(entry))));
            }
        }
    }
    Ok(lines)
}

/// An entry as bytes: bpftool's formatted form depends on its version.
fn map_entry(entry: &Value) -> String {
    format!("{} = {}", entry["key"], entry["value"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_by_itself_is_left_out() {
        let line = "12: tow0a@if3: <UP> mtu 1500 qlen 1000\\    link/ether 06:00:00:00:00:01";
        let expected = "tow0a: <UP> mtu 1500 link/ether 06:00:00:00:00:01";
        assert_eq!(
            normalised(&line.replace("@if3:", ":").replace('\\', "")),
            expected
        );
        assert_eq!(
            normalised("0: from all lookup local"),
            "from all lookup local"
        );
    }

    #[test]
    fn differences_are_told_by_section() {
        let state = |line: &str| State::from([("rules", BTreeSet::from([line.to_owned()]))]);
        let text = difference(&state("a"), &state("b"));
        assert_eq!(text, "- rules: a\n+ rules: b\n");
        assert_eq!(difference(&state("a"), &state("a")), "");
    }
}
