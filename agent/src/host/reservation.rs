//! Ports that are excluded from the host's automatic ports, for translation to use.
//!
//! The kernel's list is shared: our ports are added to the existing ones. A record on disk lists
//! the ports that we added, so that a clean-up can remove those and no others.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use document::read_file;
use loader::intent::masquerade::{HostPorts, PortList};
use loader::netlink::{self, PortSysctls};
use serde::{Deserialize, Serialize};

use sources::record;

/// Name of the record in the state folder.
const NAME: &str = "reserved-ports.json";

/// The record.
#[derive(Debug)]
pub(crate) struct Reservation {
    path: PathBuf,
    record: Record,
    sysctls: PortSysctls,
}

/// Content of the record; port lists as the kernel writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Record {
    /// Ports that we added.
    added: PortList,
    /// The whole list as we wrote it.
    written: PortList,
}

impl Reservation {
    pub(crate) fn new(state: &Path) -> Self {
        let path = state.join(NAME);
        Self {
            record: read(&path),
            path,
            sysctls: PortSysctls::new(),
        }
    }

    /// The host's automatic ports; none if the kernel does not report them.
    pub(crate) fn host_ports(&mut self) -> Option<HostPorts> {
        let reserved = self.sysctls.reserved()?;
        Some(HostPorts {
            automatic: self.sysctls.automatic()?,
            ours: withdrawable(&reserved, &self.record),
            reserved,
        })
    }

    /// Sets our ports in the kernel's list to these.
    ///
    /// # Errors
    /// When the list cannot be read or written, or the record not written.
    pub(crate) fn reserve(&mut self, wanted: &PortList) -> Result<()> {
        let record = reserve(&self.list()?, &self.record, wanted);
        // The record comes first: ports that we added without a record would stay for ever.
        self.write(&record)
            .with_context(|| format!("write {}", self.path.display()))?;
        self.record = record;
        netlink::write_reserved_ports(&self.record.written)
    }

    /// Takes out what an agent with other settings added.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(crate) fn drop_stale(&mut self, wanted: &PortList) -> Result<()> {
        if wanted.contains(&self.record.added) {
            return Ok(());
        }
        self.reserve(wanted)
    }

    /// Takes out what we added, in words; none when there is nothing of ours.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(crate) fn withdraw(&mut self) -> Result<Option<String>> {
        let ours = withdrawable(&self.list()?, &self.record);
        if !ours.is_empty() {
            netlink::write_reserved_ports(&self.list()?.minus(&ours))?;
        }
        record::remove(&self.path)?;
        Ok((!ours.is_empty()).then(|| format!("reserved ports {ours}")))
    }

    fn list(&mut self) -> Result<PortList> {
        let reserved = self.sysctls.reserved();
        reserved.context("read net.ipv4.ip_local_reserved_ports")
    }

    fn write(&self, record: &Record) -> Result<()> {
        let folder = self.path.parent().context("no folder")?;
        fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

/// The record; an empty one where there is none, or none that can be read: then nothing is taken
/// out that may be another's.
fn read(path: &Path) -> Record {
    let text = match read_file(path) {
        Ok(text) => text,
        Err(error) if error.is_missing() => return Record::default(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a record cannot be read");
            return Record::default();
        }
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "a record cannot be read");
        Record::default()
    })
}

/// Record to write so that `wanted` is reserved, and no other port that we alone reserved.
fn reserve(current: &PortList, record: &Record, wanted: &PortList) -> Record {
    let ours = withdrawable(current, record);
    let others = current.minus(&ours);
    Record {
        added: wanted.minus(&others),
        written: others.union(wanted),
    }
}

/// Ports of the kernel's list that are certainly ours.
///
/// These are all that we added, as long as the list is as we wrote it. Otherwise these are our
/// ranges that are still in the list unchanged.
fn withdrawable(current: &PortList, record: &Record) -> PortList {
    if *current == record.written {
        return record.added.clone();
    }
    let there = current.ranges();
    let ours = record.added.ranges().iter();
    PortList::new(ours.filter(|range| there.contains(range)).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> PortList {
        text.parse().unwrap()
    }

    /// Adds ports to a list, and removes them again after the list was changed.
    fn round(before: &str, changed: impl Fn(&str) -> String) -> (String, String) {
        let record = reserve(&list(before), &Record::default(), &list("40960-65535"));
        let written = record.written.to_string();
        let now = list(&changed(&written));
        (written, now.minus(&withdrawable(&now, &record)).to_string())
    }

    #[test]
    fn others_ports_stay() {
        let same = str::to_owned;
        let rounds = |before, written: &str, after: &str| {
            assert_eq!(
                round(before, same),
                (written.into(), after.into()),
                "{before}"
            );
        };
        rounds("", "40960-65535", "");
        rounds(
            "8080,9000-9005",
            "8080,9000-9005,40960-65535",
            "8080,9000-9005",
        );
        rounds("40000-40959", "40000-65535", "40000-40959");
        rounds("50000-50010", "40960-65535", "50000-50010");
        rounds("1024-65535", "1024-65535", "1024-65535");
    }

    #[test]
    fn what_somebody_wrote_since_is_theirs() {
        let (_, left) = round("8080", |written| format!("{written},7000"));
        assert_eq!(left, "7000,8080");
        let (_, left) = round("8080", |_| "40000-65535".to_owned());
        assert_eq!(left, "40000-65535");
        let (_, left) = round("", |_| String::new());
        assert_eq!(left, "");
    }

    #[test]
    fn other_settings_give_up_what_the_old_ones_wanted() {
        let wanted = list("40960-65535");
        let first = reserve(&list("8080,41000"), &Record::default(), &wanted);
        assert_eq!(first.written.to_string(), "8080,40960-65535");
        let second = reserve(&first.written, &first, &list("50176-51199"));
        assert_eq!(second.written.to_string(), "8080,41000,50176-51199");
        assert_eq!(second.added, list("50176-51199"));
        // The list was rewritten: our ports are added again, and are ours again.
        let third = reserve(&list("8080"), &first, &wanted);
        assert_eq!(third.written.to_string(), "8080,40960-65535");
        assert_eq!(third.added, wanted);
    }

    #[test]
    fn the_record_outlives_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let reservation = Reservation::new(folder.path());
        assert_eq!(reservation.record, Record::default());
        let record = Record {
            added: list("1-5"),
            written: list("1-7"),
        };
        reservation.write(&record).unwrap();
        assert_eq!(Reservation::new(folder.path()).record, record);
        fs::write(folder.path().join(NAME), "{").unwrap();
        assert_eq!(Reservation::new(folder.path()).record, Record::default());
    }
}
