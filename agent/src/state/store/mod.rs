//! The endpoints on disk: one file each, written so that a crash shows either the old state or the
//! new one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use api::ids::{EndpointId, Owner};
use api::types::AddEndpoint;
use loader::constants;
use loader::intent::{Endpoint, EndpointMeta};
use serde::{Deserialize, Serialize};

use super::atomic_dir::{Folder, Writing};
use crate::fault_points::{self, Point};
use crate::server::EndpointRequest;
use document::read_file;
use loader::stamp::Stamp;

/// Version of the records.
const VERSION: u32 = 2;
/// The oldest version that is read: its records say nothing of leases and pods.
const OLDEST: u32 = 1;
const SUFFIX: &str = ".json";
/// Suffix of a deleted endpoint's record, until the kernel has nothing of the endpoint.
const DELETED_SUFFIX: &str = ".json.deleted";
/// Suffix of an unreadable record.
const CORRUPT_SUFFIX: &str = ".json.corrupt";
const WRITING: Writing = Writing {
    is_synced: true,
    write: Point::StoreWrite,
    rename: Point::StoreRename,
};

/// A folder of records.
#[derive(Debug)]
pub(crate) struct Store {
    folder: Folder,
    /// True if a record was written since the last sync.
    is_due: bool,
    /// Endpoints that were deleted and may still be in the kernel. Without a record they would seem
    /// to be endpoints that lost theirs.
    deleted: BTreeSet<EndpointId>,
}

/// State that was on disk.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// The endpoints.
    pub(crate) endpoints: BTreeMap<EndpointId, Endpoint>,
    /// Records that cannot be read, under the names that they have now. Their owners are known only
    /// by the id in the name.
    pub(crate) corrupt: BTreeMap<EndpointId, PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Record {
    version: u32,
    owner: Owner,
    netns: PathBuf,
    addresses: Vec<IpAddr>,
    mtu: u32,
    #[serde(default)]
    about: EndpointMeta,
}

impl Store {
    /// Opens the folder, makes it when it is missing, and reads every record. A record that cannot
    /// be read is set aside and reported; it stops nothing.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Stored)> {
        let (folder, names) = Folder::open(folder)?;
        let mut store = Self {
            folder,
            is_due: false,
            deleted: BTreeSet::new(),
        };
        let mut stored = Stored::default();
        for name in names {
            let path = store.folder.path(&name);
            if let Some(id) = id_of(&name, DELETED_SUFFIX) {
                store.deleted.insert(id);
            } else if let Some(id) = id_of(&name, CORRUPT_SUFFIX) {
                stored.corrupt.insert(id, path);
            } else if let Some(id) = id_of(&name, SUFFIX) {
                match read(&path, id) {
                    Ok(endpoint) => {
                        stored.endpoints.insert(id, endpoint);
                    }
                    Err(error) => {
                        let aside = store.corrupt_path(id);
                        tracing::error!(
                            record = %path.display(),
                            aside = %aside.display(),
                            "an endpoint's record cannot be read and is set aside: {error:#}"
                        );
                        // A record that cannot be set aside now is set aside by the next start.
                        let is_aside = fs::rename(&path, &aside).is_ok();
                        stored
                            .corrupt
                            .insert(id, if is_aside { aside } else { path });
                    }
                }
            }
        }
        stored
            .corrupt
            .retain(|id, _| !stored.endpoints.contains_key(id));
        store
            .deleted
            .retain(|id| !stored.endpoints.contains_key(id) && !stored.corrupt.contains_key(id));
        Ok((store, stored))
    }

    /// The folder of records as it is now.
    pub(crate) fn stamp(&self) -> Stamp {
        self.folder.stamp()
    }

    /// Writes an endpoint's record. When this returns, the record is in force, also after a crash;
    /// [`Self::sync`] makes it last.
    ///
    /// # Errors
    /// When it cannot be written; the old record is in force then.
    pub(crate) fn put(&mut self, endpoint: &Endpoint) -> Result<()> {
        let record = Record {
            version: VERSION,
            owner: endpoint.owner.clone(),
            netns: endpoint.netns.clone(),
            addresses: endpoint.addresses.iter().copied().collect(),
            mtu: endpoint.mtu,
            about: endpoint.about.clone(),
        };
        let content = serde_json::to_vec(&record).context("write JSON")?;
        self.folder.put(&name(endpoint.id()), &content, WRITING)?;
        self.deleted.remove(&endpoint.id());
        self.is_due = true;
        fault_points::reach(Point::StoreRenamed);
        Ok(())
    }

    /// Syncs the written records, once for a burst, with those of a failed earlier sync.
    pub(crate) fn sync(&mut self) {
        if mem::take(&mut self.is_due) || self.unsynced().is_some() {
            self.folder.sync();
        }
    }

    /// Writes removed records again: at its next start, the agent would treat their endpoints as
    /// deleted. Also retries a failed sync.
    ///
    /// # Errors
    /// The first record that cannot be written. It keeps no other one back.
    pub(crate) fn restore<'a>(
        &mut self,
        endpoints: impl IntoIterator<Item = &'a Endpoint>,
    ) -> Result<()> {
        let mut restored = Ok(());
        for endpoint in endpoints {
            restored = restored.and(self.put_missing(endpoint));
        }
        self.sync();
        restored
    }

    fn put_missing(&mut self, endpoint: &Endpoint) -> Result<()> {
        let path = self.path(endpoint.id());
        let is_there = path.try_exists();
        if !is_there.with_context(|| format!("look at {}", path.display()))? {
            self.put(endpoint)?;
            tracing::warn!(record = %path.display(), "rewriting a missing record");
        }
        Ok(())
    }

    /// Marks an endpoint's record as that of a deleted one, also one that was set aside or is not
    /// there. [`Self::forget_deleted`] removes it.
    ///
    /// # Errors
    /// When it cannot be done.
    pub(crate) fn remove(&mut self, id: EndpointId) -> Result<()> {
        self.folder.rename(&name(id), &deleted_name(id))?;
        self.folder.remove(&corrupt_name(id))?;
        self.folder.sync();
        self.deleted.insert(id);
        Ok(())
    }

    /// True if an endpoint was deleted.
    pub(crate) fn is_deleted(&self, id: EndpointId) -> bool {
        self.deleted.contains(&id)
    }

    /// Removes what is left of the records of deleted endpoints of which the kernel has nothing.
    pub(crate) fn forget_deleted(&mut self, is_gone: impl Fn(EndpointId) -> bool) {
        let folder = &self.folder;
        self.deleted.retain(|id| {
            let forgotten = is_gone(*id).then(|| folder.remove(&deleted_name(*id)));
            if let Some(Err(error)) = &forgotten {
                tracing::debug!("cannot delete the record of a deleted endpoint: {error:#}");
            }
            !matches!(forgotten, Some(Ok(())))
        });
    }

    /// Reason why a power cut may undo the last changes; `None` if it cannot.
    pub(crate) fn unsynced(&self) -> Option<&str> {
        self.folder.unsynced()
    }

    fn path(&self, id: EndpointId) -> PathBuf {
        self.folder.path(&name(id))
    }

    fn corrupt_path(&self, id: EndpointId) -> PathBuf {
        self.folder.path(&corrupt_name(id))
    }
}

fn name(id: EndpointId) -> String {
    format!("{id}{SUFFIX}")
}

fn corrupt_name(id: EndpointId) -> String {
    format!("{id}{CORRUPT_SUFFIX}")
}

fn deleted_name(id: EndpointId) -> String {
    format!("{id}{DELETED_SUFFIX}")
}

fn id_of(name: &str, suffix: &str) -> Option<EndpointId> {
    let id = name.strip_suffix(suffix)?;
    EndpointId::from_device(&format!("{}{id}", EndpointId::DEVICE_PREFIX))
}

fn read(path: &Path, id: EndpointId) -> Result<Endpoint> {
    let Record {
        version,
        owner,
        netns,
        addresses,
        mtu,
        about,
    } = serde_json::from_str(&read_file(path)?)?;
    ensure!(
        (OLDEST..=VERSION).contains(&version),
        "version is {version}; {OLDEST} to {VERSION} are allowed"
    );
    ensure!(
        (constants::MTU_MIN..=constants::MTU_MAX).contains(&mtu),
        "mtu is {mtu}; {} to {} are allowed",
        constants::MTU_MIN,
        constants::MTU_MAX
    );
    // The record gets the same checks as the original request.
    let EndpointRequest {
        owner,
        netns,
        addresses,
        ask: _,
    } = AddEndpoint {
        owner,
        netns,
        addresses: Some(addresses),
        families: Vec::new(),
        pools: BTreeMap::new(),
        network: None,
        pod: None,
    }
    .try_into()?;
    for lease in &about.leases {
        ensure!(
            lease.owner == owner && addresses.contains(&lease.address),
            "the lease of {} is not of this endpoint",
            lease.address
        );
    }
    ensure!(
        EndpointId::of(&owner) == id,
        "its owner {owner} does not go with its name"
    );
    Ok(Endpoint {
        owner,
        netns,
        addresses,
        mtu,
        about,
    })
}

#[cfg(test)]
mod tests;
