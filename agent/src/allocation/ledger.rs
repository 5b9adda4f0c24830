//! The ledger: the records of addresses on disk, apart from the endpoints' records.
//!
//! It has a record for each owner without an endpoint of ours, with the owner's leases. It has one
//! for each address that cools down, and one for each released block that the node still has. After
//! a crash each record has its old or its new content.
//!
//! A record's name has the owner's id and the addresses. A record that cannot be read thus still
//! reserves its addresses, and affects no other record.
//!
//! An endpoint's leases are in its own record. So an endpoint is added with one write, and its
//! record and its leases cannot disagree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::ids::EndpointId;
use ipam::{Claim, Cooling, Lease, Time};
use ipnet::IpNet;
use loader::intent::EndpointMeta;
use serde::{Deserialize, Serialize};

use crate::fault_points::{self, Point};
use crate::state::atomic_dir::{Folder, Writing};
use document::read_file;

/// Name of the folder in the state folder.
const FOLDER: &str = "addresses";
/// Version of the records.
const VERSION: u32 = 1;
const SUFFIX: &str = ".json";
const LEASE: &str = "lease";
const COOLING: &str = "cooling";
const RELEASED: &str = "released";
/// Separator of a name's parts, which no address and no id contains.
const SEPARATOR: char = '_';

/// The records.
#[derive(Debug)]
pub(super) struct Ledger {
    folder: Folder,
    boot: String,
    /// The records on disk; `None` for a record that is to be rewritten or removed.
    known: BTreeMap<Name, Option<Record>>,
    /// Names of the leases' records that cannot be read.
    unreadable: BTreeSet<Name>,
}

/// Content of one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Entry {
    /// An owner without an endpoint of ours, with one lease at least. All the leases are the
    /// owner's.
    Owner(EndpointMeta),
    /// An address that cools down.
    Cooling(Cooling),
    /// A released block.
    Released(IpNet),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Record {
    version: u32,
    /// Id of the boot that the times refer to.
    boot: String,
    entry: Entry,
}

/// A record's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// Leases, by their owner's id.
    Lease(EndpointId, BTreeSet<IpAddr>),
    Cooling(IpAddr),
    Released(IpNet),
}

/// The records found at the start.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Owners without an endpoint of ours.
    pub(super) owners: Vec<EndpointMeta>,
    pub(super) cooling: Vec<Cooling>,
    /// Released blocks.
    pub(super) released: BTreeSet<IpNet>,
    /// The addresses of unreadable records, by the owner's id.
    pub(super) unreadable: BTreeMap<EndpointId, BTreeSet<IpAddr>>,
}

impl Ledger {
    /// Reads the records in the state folder. An unreadable lease is left in place. An address
    /// whose cooldown cannot be read starts it again.
    ///
    /// # Errors
    /// If the folder cannot be read or written.
    pub(super) fn open(state: &Path, boot: &str, now: Time) -> Result<(Self, Found)> {
        let (folder, names) = Folder::open(&state.join(FOLDER))?;
        let mut ledger = Self {
            folder,
            boot: boot.to_owned(),
            known: BTreeMap::new(),
            unreadable: BTreeSet::new(),
        };
        let mut found = Found::default();
        for text in names {
            let Some(name) = Name::parse(&text) else {
                continue;
            };
            let path = ledger.folder.path(&text);
            match (read(&path, &name), &name) {
                (Ok(record), _) => {
                    found.take(record.in_boot(boot, now));
                    ledger.known.insert(name, Some(record));
                }
                (Err(error), Name::Lease(id, addresses)) => {
                    let record = path.display();
                    tracing::error!(%record, "the record of a lease cannot be read: {error:#}");
                    found.unreadable.entry(*id).or_default().extend(addresses);
                    ledger.unreadable.insert(name);
                }
                (Err(error), Name::Cooling(address)) => {
                    tracing::error!(%address, "cannot read a cooldown; it starts again: {error:#}");
                    found.cooling.push(Cooling {
                        address: *address,
                        pool: None,
                        block: (*address).into(),
                        until: at_the_latest(now),
                        released: None,
                        over: false,
                    });
                    ledger.known.insert(name, None);
                }
                (Err(error), Name::Released(block)) => {
                    // The name has the whole content.
                    tracing::warn!(%block, "rewriting the record of a released block: {error:#}");
                    found.released.insert(*block);
                    ledger.known.insert(name, None);
                }
            }
        }
        Ok((ledger, found))
    }

    /// Writes the records that have changed, and removes those that are over. On return the changes
    /// survive a crash.
    ///
    /// # Errors
    /// If a record cannot be written or removed. All the others are still written. No record is
    /// removed unless all were written.
    pub(super) fn write(&mut self, entries: Vec<Entry>) -> Result<()> {
        let mut wanted = BTreeMap::new();
        for entry in entries {
            let name = Name::of(&entry).context("leases without an owner")?;
            let record = Record {
                version: VERSION,
                boot: self.boot.clone(),
                entry,
            };
            wanted.insert(name, record);
        }
        let mut outcome = Ok(());
        let mut has_changed = false;
        let mut put_any = false;
        for (name, record) in &wanted {
            if self
                .known
                .get(name)
                .is_some_and(|known| known.as_ref() == Some(record))
            {
                continue;
            }
            match self.put(name, record) {
                Ok(()) => {
                    self.unreadable.remove(name);
                    self.known.insert(name.clone(), Some(record.clone()));
                    put_any = true;
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        // Records are removed last, and only if all that replace them were written. Until then the
        // old record reserves the address.
        let is_replaced = outcome.is_ok();
        let names = self.known.keys();
        let over = names.filter(|name| is_replaced && !wanted.contains_key(*name));
        for name in over.cloned().collect::<Vec<_>>() {
            match self.folder.remove(&name.to_string()) {
                Ok(()) => {
                    self.known.remove(&name);
                    has_changed = true;
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        if put_any || has_changed || self.folder.unsynced().is_some() {
            self.folder.sync();
        }
        if put_any {
            fault_points::reach(Point::AddressesWritten);
        }
        outcome
    }

    fn put(&self, name: &Name, record: &Record) -> Result<()> {
        let writing = Writing {
            // A cooldown or a released block whose file is empty after a power cut is rewritten, so
            // its file needs no sync.
            is_synced: matches!(name, Name::Lease(..)),
            write: Point::AddressesWrite,
            rename: Point::AddressesRename,
        };
        let content = serde_json::to_vec(record).context("write JSON")?;
        self.folder.put(&name.to_string(), &content, writing)
    }

    /// Marks an owner's unreadable records for removal by the next write.
    pub(super) fn drop_unreadable(&mut self, id: EndpointId) {
        let (of_owner, others): (BTreeSet<_>, _) = std::mem::take(&mut self.unreadable)
            .into_iter()
            .partition(|name| matches!(name, Name::Lease(of, _) if *of == id));
        self.unreadable = others;
        self.known
            .extend(of_owner.into_iter().map(|name| (name, None)));
    }

    /// True if a power cut may undo the last changes.
    pub(super) fn is_unsynced(&self) -> bool {
        self.folder.unsynced().is_some()
    }

    /// The faults, for the status.
    pub(super) fn faults(&self) -> impl Iterator<Item = String> {
        let unreadable = self.unreadable.iter().map(|name| {
            let path = self.folder.path(&name.to_string());
            format!(
                "the record of a lease cannot be read: {}; its addresses stay reserved until \
                 its owner is deleted, or until you remove the record and restart the agent",
                path.display()
            )
        });
        unreadable.chain(self.folder.unsynced().map(str::to_owned))
    }
}

/// Removes all records, and returns a text that names the folder; `None` without one.
///
/// # Errors
/// If the folder cannot be removed.
pub(crate) fn remove(state: &Path) -> Result<Option<String>> {
    let path = state.join(FOLDER);
    match fs::remove_dir_all(&path) {
        Ok(()) => Ok(Some(format!("addresses {}", path.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
    }
}

impl Found {
    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Owner(about) => self.owners.push(about),
            Entry::Cooling(cooling) => self.cooling.push(cooling),
            Entry::Released(block) => drop(self.released.insert(block)),
        }
    }
}

impl Record {
    /// The entry with its times converted to those of this boot. The elapsed part of a time of
    /// another boot is unknown. So the time becomes the longest possible, and the allocator limits
    /// it to the configured one.
    fn in_boot(&self, boot: &str, now: Time) -> Entry {
        let mut entry = self.entry.clone();
        if self.boot == boot {
            return entry;
        }
        match &mut entry {
            Entry::Owner(about) => {
                about.since = Some(now);
                for lease in &mut about.leases {
                    lease.since = now;
                    if let Claim::Unclaimed { until } = &mut lease.claim {
                        *until = at_the_latest(now);
                    }
                }
            }
            Entry::Cooling(cooling) => {
                cooling.until = at_the_latest(now);
                cooling.released = cooling.released.map(|_| now);
            }
            Entry::Released(_block) => {}
        }
        entry
    }
}

fn at_the_latest(now: Time) -> Time {
    now.after(Duration::MAX)
}

impl Name {
    /// The name of an entry's record; `None` for an owner without leases.
    fn of(entry: &Entry) -> Option<Self> {
        Some(match entry {
            Entry::Owner(about) => {
                let id = EndpointId::of(&about.leases.first()?.owner);
                let addresses = about.leases.iter().map(|lease| lease.address);
                Self::Lease(id, addresses.collect())
            }
            Entry::Cooling(cooling) => Self::Cooling(cooling.address),
            Entry::Released(block) => Self::Released(*block),
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_suffix(SUFFIX)?.split(SEPARATOR);
        match parts.next()? {
            LEASE => {
                let id = parts.next()?.parse().ok()?;
                let addresses = parts.map(str::parse).collect::<Result<BTreeSet<_>, _>>();
                let addresses = addresses.ok().filter(|all| !all.is_empty())?;
                Some(Self::Lease(id, addresses))
            }
            COOLING => {
                let address = parts.next()?.parse().ok()?;
                parts.next().is_none().then_some(Self::Cooling(address))
            }
            RELEASED => {
                let block = IpNet::new(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
                parts
                    .next()
                    .is_none()
                    .then_some(Self::Released(block.ok()?))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease(id, addresses) => {
                write!(f, "{LEASE}{SEPARATOR}{id}")?;
                for address in addresses {
                    write!(f, "{SEPARATOR}{address}")?;
                }
            }
            Self::Cooling(address) => write!(f, "{COOLING}{SEPARATOR}{address}")?,
            Self::Released(block) => write!(
                f,
                "{RELEASED}{SEPARATOR}{}{SEPARATOR}{}",
                block.addr(),
                block.prefix_len()
            )?,
        }
        f.write_str(SUFFIX)
    }
}

fn read(path: &Path, name: &Name) -> Result<Record> {
    let record: Record = serde_json::from_str(&read_file(path)?)?;
    ensure!(
        record.version == VERSION,
        "version is {}; {VERSION} is allowed",
        record.version
    );
    if let Entry::Owner(EndpointMeta { leases, .. }) = &record.entry {
        let is_of_first = |lease: &Lease| Some(&lease.owner) == leases.first().map(|l| &l.owner);
        ensure!(
            leases.iter().all(is_of_first),
            "leases of two owners are in one place"
        );
    }
    ensure!(
        Name::of(&record.entry).as_ref() == Some(name),
        "its content does not match its name"
    );
    Ok(record)
}
