//! A reboot of the fabric's node: what a machine loses by it goes, what lies on its disk stays.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::cgroup;
use crate::fabric::{Fabric, Netns, record};

/// Commands that remove kernel state which does not go with its device.
const FORGOTTEN: [&str; 6] = [
    "ip -4 rule flush",
    "ip -6 rule flush",
    "ip -4 rule add priority 32766 lookup main",
    "ip -6 rule add priority 32766 lookup main",
    "nft flush ruleset",
    "conntrack --flush",
];

impl Fabric {
    /// Reboots the node: its processes end, its devices, rules, routes, pins and files below `/run` go,
    /// and its ENIs come up as at first. Nothing is started.
    ///
    /// # Errors
    /// When something cannot be removed or made.
    pub fn reboot(&mut self) -> Result<()> {
        Netns::kill_processes_in(self.node.name())?;
        cgroup::remove(&self.cgroup())?;
        let attached: Vec<u8> = self.attached.iter().copied().collect();
        for number in &attached {
            self.detach(*number)?;
        }
        self.remove_devices()?;
        for line in FORGOTTEN {
            self.node.run(line)?;
        }
        for family in [4, 6] {
            self.node
                .run(&format!("ip -{family} route flush table all"))?;
        }
        // The loopback device's own routes were among these.
        self.node.ip("link set lo down\nlink set lo up\n")?;
        for name in ["state", "cni", "pending-deletes", "agent.sock"] {
            forget(&self.record.folder().join(name))?;
        }
        forget(&self.pin_root())?;
        for number in &attached {
            self.attach(*number)?;
        }
        self.configure_primary()
    }

    fn remove_devices(&self) -> Result<()> {
        let links = self.node.ip_json("link show")?;
        let names = links.as_array().into_iter().flatten();
        for name in names.filter_map(|link| link["ifname"].as_str()) {
            if name != "lo" {
                // One end of a pair takes the other along.
                let _gone = self.node.run(&format!("ip link del {name}"));
            }
        }
        let left = self.node.ip_json("link show")?;
        let left = left.as_array().map_or(0, Vec::len);
        (left == 1).then_some(()).context("a device stays")
    }
}

/// Unmounts what is mounted below some folders, and removes what is in them.
///
/// # Errors
/// When something cannot be removed.
pub(crate) fn empty(folders: &[&Path]) -> Result<()> {
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        record::unmount_inside(folder)?;
        for entry in fs::read_dir(folder)? {
            forget(&entry?.path())?;
        }
    }
    Ok(())
}

fn forget(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_none) => return Ok(()),
    };
    removed.with_context(|| format!("remove {}", path.display()))
}
