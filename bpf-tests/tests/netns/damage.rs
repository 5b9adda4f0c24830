//! What somebody does to the node.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use bpf_tests::fabric::{Fabric, command};
use serde_json::Value;

/// What somebody does.
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
    /// The first entry of a map is removed.
    DeleteMapEntry(&'static str),
    /// The first entry of a map is overwritten with zeros.
    SpoilMapEntry(&'static str),
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

/// A map's pin and its first entry: key and value, in bpftool's way.
fn first_entry(fabric: &Fabric, map: &str) -> Result<(String, String, String)> {
    let pins = pins(fabric, "maps")?;
    let path = pins.iter().find(|path| path.ends_with(map));
    let path = path.with_context(|| format!("{map} is not pinned"))?;
    let path = path.display().to_string();
    let dump: Value = serde_json::from_str(&bpftool(&format!("-j map dump pinned {path}"))?)?;
    let bytes = |field: &str| -> Result<String> {
        let bytes = dump[0][field].as_array().context("the map is empty")?;
        let words: Vec<_> = bytes.iter().filter_map(Value::as_str).collect();
        Ok(words.join(" ").replace("0x", ""))
    };
    Ok((path, bytes("key")?, bytes("value")?))
}

impl Damage {
    /// Does it.
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
            Self::DeleteMapEntry(map) => {
                let (path, key, _) = first_entry(fabric, map)?;
                bpftool(&format!("map delete pinned {path} key hex {key}")).map(drop)
            }
            Self::SpoilMapEntry(map) => {
                let (path, key, value) = first_entry(fabric, map)?;
                let zeros = "00 ".repeat(value.split_whitespace().count());
                bpftool(&format!(
                    "map update pinned {path} key hex {key} value hex {zeros}"
                ))
                .map(drop)
            }
        }
    }

    /// What a failure calls it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Ip(words) => format!("ip {words}"),
            Self::Tc(words) => format!("tc {words}"),
            Self::Sysctl(key, value) => format!("{key} = {value}"),
            Self::RemoveLinkPins => "the links' pins removed".to_owned(),
            Self::DetachLinks => "the links detached".to_owned(),
            Self::DeleteMapEntry(map) => format!("an entry of {map} removed"),
            Self::SpoilMapEntry(map) => format!("an entry of {map} spoiled"),
        }
    }
}
