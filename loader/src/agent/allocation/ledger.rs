//! What is on disk of addresses beside the endpoints' records: cooldowns, leases of owners without
//! an endpoint of ours, blocks that were given back. One file, written so that a crash shows either
//! the old state or the new one.
//!
//! An endpoint's leases are in its own record. So an endpoint is added with one write, and its
//! record and its leases cannot disagree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use ipam::{Cooling, Lease, State};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::document::read_file;
use crate::faults::{self, Point};
use crate::intent::About;

/// Name of the file in the state folder.
const NAME: &str = "addresses.json";
/// What a file that cannot be read is renamed to.
const CORRUPT: &str = "addresses.json.corrupt";
/// What a temporary file's name begins with.
const TEMPORARY_PREFIX: &str = ".addresses-";
/// Version of the file.
const VERSION: u32 = 1;

/// The file.
#[derive(Debug)]
pub(super) struct Ledger {
    folder: PathBuf,
}

/// What stands in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entries {
    /// Owners without an endpoint of ours: their leases, and who they are. All leases of one entry
    /// have one owner.
    pub(super) owners: Vec<About>,
    /// What cools down.
    pub(super) cooling: Vec<Cooling>,
    /// Blocks that were given back.
    pub(super) released: BTreeSet<IpNet>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Content {
    version: u32,
    /// The boot that its times are of.
    boot: String,
    owners: Vec<About>,
    cooling: Vec<Cooling>,
    released: BTreeSet<IpNet>,
}

/// What was found at the start.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) entries: Entries,
    /// Whether its times are of another boot, and so mean nothing.
    pub(super) is_of_another_boot: bool,
    /// Where the file is now that could not be read, here or at an earlier start.
    pub(super) corrupt: Option<PathBuf>,
}

impl Ledger {
    /// Reads the file. One that cannot be read is set aside: endpoints have their leases in their
    /// records, so what is lost are cooldowns, and leases of owners without an endpoint.
    ///
    /// # Errors
    /// When the folder cannot be read or written.
    pub(super) fn open(folder: &Path, boot: &str) -> Result<(Self, Found)> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let ledger = Self {
            folder: folder.to_owned(),
        };
        ledger.remove_leftovers()?;
        let path = folder.join(NAME);
        let aside = folder.join(CORRUPT);
        let mut found = Found::default();
        if path.try_exists()? {
            match read(&path) {
                Ok(content) => {
                    found.is_of_another_boot = content.boot != boot;
                    found.entries = Entries {
                        owners: content.owners,
                        cooling: content.cooling,
                        released: content.released,
                    };
                }
                Err(error) => {
                    tracing::error!(
                        file = %path.display(),
                        aside = %aside.display(),
                        "the addresses' file cannot be read and is set aside: {error:#}"
                    );
                    fs::rename(&path, &aside)
                        .with_context(|| format!("rename {}", path.display()))?;
                }
            }
        }
        found.corrupt = aside.try_exists()?.then_some(aside);
        Ok((ledger, found))
    }

    fn remove_leftovers(&self) -> Result<()> {
        let folder = self.folder.display();
        let entries = fs::read_dir(&self.folder).with_context(|| format!("read {folder}"))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("read {folder}"))?;
            let name = entry.file_name();
            if name.to_string_lossy().starts_with(TEMPORARY_PREFIX)
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::warn!(path = %entry.path().display(), %error, "a leftover stays");
            }
        }
        Ok(())
    }

    /// Writes it. When this returns, it survives a crash.
    ///
    /// # Errors
    /// When it cannot be written; the old one is in force then.
    pub(super) fn write(&self, entries: &Entries, boot: &str) -> Result<()> {
        let path = self.folder.join(NAME);
        let write = || -> Result<()> {
            fs::create_dir_all(&self.folder)?;
            let content = Content {
                version: VERSION,
                boot: boot.to_owned(),
                owners: entries.owners.clone(),
                cooling: entries.cooling.clone(),
                released: entries.released.clone(),
            };
            let mut temporary = tempfile::Builder::new()
                .prefix(TEMPORARY_PREFIX)
                .tempfile_in(&self.folder)?;
            faults::reach(Point::AddressesWrite);
            temporary.write_all(&serde_json::to_vec(&content)?)?;
            temporary.as_file().sync_all()?;
            faults::reach(Point::AddressesRename);
            temporary.persist(&path)?;
            File::open(&self.folder)?.sync_all()?;
            faults::reach(Point::AddressesWritten);
            Ok(())
        };
        write().with_context(|| format!("write {}", path.display()))
    }
}

/// Removes the file, also one that was set aside; what was removed, in words.
///
/// # Errors
/// When one cannot be removed.
pub(in crate::agent) fn remove(folder: &Path) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for name in [NAME, CORRUPT] {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Ok(()) => removed.push(format!("addresses {}", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("remove {}", path.display())),
        }
    }
    Ok(removed)
}

fn read(path: &Path) -> Result<Content> {
    let content: Content = serde_json::from_str(&read_file(path)?)?;
    ensure!(
        content.version == VERSION,
        "version is {}; {VERSION} is allowed",
        content.version
    );
    for about in &content.owners {
        let mut leases = about.leases.iter();
        let first = leases.next().context("an owner without a lease")?;
        ensure!(
            leases.all(|lease| lease.owner == first.owner),
            "leases of {} and of another one are in one place",
            first.owner
        );
    }
    Ok(content)
}

impl Entries {
    /// The leases and all the rest, as the allocator takes it.
    pub(super) fn into_state(self, of_endpoints: impl Iterator<Item = Lease>) -> State {
        let mut leases: BTreeMap<IpAddr, Lease> = BTreeMap::new();
        let own = self.owners.into_iter().flat_map(|about| about.leases);
        // What stands first counts: an endpoint has its addresses, whatever else was written down.
        for lease in of_endpoints.chain(own) {
            leases.entry(lease.address).or_insert(lease);
        }
        // Of an endpoint whose delete did not get to its record.
        let is_free = |cooling: &Cooling| !leases.contains_key(&cooling.address);
        State {
            cooling: self.cooling.into_iter().filter(is_free).collect(),
            leases: leases.into_values().collect(),
            released: self.released,
        }
    }
}
