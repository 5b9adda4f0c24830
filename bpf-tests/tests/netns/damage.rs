//! Damage to the node by other software.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;
use testkit::fabric::{Fabric, command};

/// Damage to the node.
#[derive(Clone, Debug)]
pub(crate) enum Damage {
    /// `ip` with these words.
    Ip(String),
    /// `tc` with these words.
    Tc(String),
    /// A value is written to a sysctl.
    Sysctl(String, &'static str),
    /// The pins of our links are removed.
    RemoveLinkPins,
    /// Our links are detached; their pins stay.
    DetachLinks,
    /// An entry of a map is removed.
    DeleteMapEntry(&'static str, Entry),
    /// An entry of a map is overwritten with zeros.
    SpoilMapEntry(&'static str, Entry),
}

/// Selection of an entry of a map.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// The first, in the kernel's order.
    First,
    /// The entry of an address.
    Of(IpAddr),
}

/// The files of a folder below the pins.
fn pins(fabric: &Fabric, folder: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for version in std::fs::read_dir(fabric.pin_root())? {
        for entry in std::fs::read_dir(version?.path().join(folder))? {
            found.push(entry?.path());
        }
    }
    Ok(found)
}

fn bpftool(words: &str) -> Result<String> {
    command::run(std::process::Command::new("bpftool").args(words.split_whitespace()))
}

/// A map's pin and an entry: key and value, in bpftool's form.
fn entry(fabric: &Fabric, map: &str, which: Entry) -> Result<(String, String, String)> {
    let pins = pins(fabric, "maps")?;
    let path = pins.iter().find(|path| path.ends_with(map));
    let path = path.with_context(|| format!("{map} is not pinned"))?;
    let path = path.display().to_string();
    let dump: Value = serde_json::from_str(&bpftool(&format!("-j map dump pinned {path}"))?)?;
    let bytes = |entry: &Value, field: &str| -> Result<String> {
        let bytes = entry[field].as_array().context("no bytes")?;
        let words: Vec<_> = bytes.iter().filter_map(Value::as_str).collect();
        Ok(words.join(" ").replace("0x", ""))
    };
    let mut entries = dump.as_array().context("no entries")?.iter();
    let entry = match which {
        Entry::First => entries.next(),
        Entry::Of(address) => {
            let octets = match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            let key = octets.map(|octet| format!("{octet:02x}")).join(" ");
            entries.find(|entry| bytes(entry, "key").is_ok_and(|bytes| bytes == key))
        }
    };
    let entry = entry.with_context(|| format!("no entry {which:?} in {map}: {dump}"))?;
    Ok((path, bytes(entry, "key")?, bytes(entry, "value")?))
}

impl Damage {
    /// Inflicts the damage.
    pub(crate) fn inflict(&self, fabric: &Fabric) -> Result<()> {
        match self {
            Self::Ip(words) => fabric.node.run(&format!("ip {words}")).map(drop),
            Self::Tc(words) => fabric.node.run(&format!("tc {words}")).map(drop),
            Self::Sysctl(key, value) => fabric.node.sysctls(&[(key, value)]),
            Self::RemoveLinkPins => {
                for pin in pins(fabric, "links")? {
                    std::fs::remove_file(pin)?;
                }
                Ok(())
            }
            Self::DetachLinks => {
                for pin in pins(fabric, "links")? {
                    bpftool(&format!("link detach pinned {}", pin.display()))?;
                }
                Ok(())
            }
            Self::DeleteMapEntry(map, which) => {
                let (path, key, _) = entry(fabric, map, *which)?;
                bpftool(&format!("map delete pinned {path} key hex {key}")).map(drop)
            }
            Self::SpoilMapEntry(map, which) => {
                let (path, key, value) = entry(fabric, map, *which)?;
                let zeros = "00 ".repeat(value.split_whitespace().count());
                bpftool(&format!(
                    "map update pinned {path} key hex {key} value hex {zeros}"
                ))
                .map(drop)
            }
        }
    }

    /// Name of the damage in a failure.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Ip(words) => format!("ip {words}"),
            Self::Tc(words) => format!("tc {words}"),
            Self::Sysctl(key, value) => format!("{key} = {value}"),
            Self::RemoveLinkPins => "the links' pins removed".to_owned(),
            Self::DetachLinks => "the links detached".to_owned(),
            Self::DeleteMapEntry(map, which) => format!("{which:?} entry of {map} removed"),
            Self::SpoilMapEntry(map, which) => format!("{which:?} entry of {map} spoiled"),
        }
    }
}
