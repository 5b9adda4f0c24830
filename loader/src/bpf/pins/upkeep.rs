//! The pins of maps while the agent runs: what goes is pinned again.
//!
//! The pins are the only holders of maps and links that outlive the agent, so flows hang on them.
//! While it runs it holds each map open as well, and whatever happens to the folder or to the file
//! system below it, these very maps are pinned again: never new ones, which would be empty.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use datapath_common::abi::map;

use crate::bpf::pins::bpffs;
use crate::bpf::pins::{self, Pins};
use crate::bpf::sys;

/// The identity of a file, as against another one at the same path.
type Identity = (u64, u64);

/// The maps that are held, and where they are pinned.
pub(in crate::bpf) struct Upkeep {
    root: PathBuf,
    /// Where the BPF filesystem is mounted.
    mount_point: PathBuf,
    folder: Option<Identity>,
    maps: Vec<Held>,
    /// Devices whose clsact qdisc is marked as ours.
    marks: BTreeSet<u32>,
}

/// A map that is held open.
struct Held {
    name: &'static str,
    map: OwnedFd,
    pin: Option<Identity>,
}

impl Upkeep {
    /// Holds the maps that were just pinned below a root.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub(in crate::bpf) fn new(root: &Path, pins: &Pins) -> Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            mount_point: bpffs::mount_point(root),
            folder: identity(&pins.links_folder()),
            maps: map::PINNED
                .into_iter()
                .map(|name| Held::open(name, pins))
                .collect::<Result<_>>()?,
            marks: pins.qdiscs()?.into_iter().collect(),
        })
    }

    /// Pins again what is not pinned any more; whether there was anything.
    ///
    /// # Errors
    /// When something cannot be pinned; everything else is.
    pub(in crate::bpf) fn keep(&mut self, pins: &Pins) -> Result<bool> {
        let is_gone = self.folder.is_none() || self.folder != identity(&pins.links_folder());
        if is_gone {
            bpffs::restore(&self.mount_point)?;
            bpffs::prepare(&self.root)?;
            pins.create()?;
            for ifindex in &self.marks {
                pins.mark(*ifindex)?;
            }
            self.folder = identity(&pins.links_folder());
            tracing::warn!(
                folder = %self.root.display(),
                "creating the missing pin folder again"
            );
        } else {
            self.marks = pins.qdiscs()?.into_iter().collect();
        }
        let mut has_pinned = is_gone;
        let mut problems = Vec::new();
        for held in &mut self.maps {
            match held.keep(pins) {
                Ok(pinned) => has_pinned |= pinned,
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        if !problems.is_empty() {
            bail!(problems.join("; "));
        }
        Ok(has_pinned)
    }

    /// Replaces the held map of flow marks by the recreated one.
    ///
    /// # Errors
    /// If it cannot be opened, or if the pin of another map has changed in between. Programs were
    /// then loaded with a map that is not held.
    pub(in crate::bpf) fn take_notes(&mut self, pins: &Pins) -> Result<()> {
        for held in self.maps.iter_mut().filter(|held| held.name != map::STACK) {
            let path = pins.map(held.name);
            if held.pin != identity(&path) {
                bail!(
                    "the pin {} changed while programs were loaded",
                    path.display()
                );
            }
        }
        for held in self.maps.iter_mut().filter(|held| held.name == map::STACK) {
            *held = Held::open(held.name, pins)?;
        }
        Ok(())
    }
}

impl Held {
    fn open(name: &'static str, pins: &Pins) -> Result<Self> {
        let path = pins.map(name);
        let map = sys::open_pin(&path)
            .with_context(|| format!("cannot open the pinned map {}", path.display()))?;
        Ok(Self {
            name,
            map,
            pin: identity(&path),
        })
    }

    /// Pins the map where it is not; whether it was not.
    fn keep(&mut self, pins: &Pins) -> Result<bool> {
        let path = pins.map(self.name);
        let there = identity(&path);
        if there.is_some() && there == self.pin {
            return Ok(false);
        }
        // Programs run with the map that is held, so another one is of no use to anybody.
        pins::remove(&path)?;
        sys::pin(self.map.as_fd(), &path)
            .with_context(|| format!("cannot pin the map {}", path.display()))?;
        self.pin = identity(&path);
        Ok(true)
    }
}

/// The identity of a file; none without a file, or if it cannot be read.
fn identity(path: &Path) -> Option<Identity> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}
