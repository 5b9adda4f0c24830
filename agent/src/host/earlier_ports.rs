//! The ports that flows may have of programs that ran before, by a record on disk: where the ports
//! of translation follow the host's, an answer is looked for at the earlier ones as well.

use std::path::{Path, PathBuf};

use anyhow::Result;
use loader::intent::masquerade::PortList;
use serde::{Deserialize, Serialize};

use sources::record;

/// Name of the record in the state folder.
const NAME: &str = "ports.json";

/// The record.
#[derive(Debug)]
pub(crate) struct EarlierPorts {
    path: PathBuf,
    record: Record,
}

/// The content of the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Record {
    /// The boot that it is of: no flow outlives it.
    boot: String,
    /// The ports.
    ports: PortList,
}

impl EarlierPorts {
    /// The record of this boot in the state folder.
    pub(crate) fn open(state: &Path, boot: &str) -> Self {
        let path = state.join(NAME);
        let record = record::read::<Record>(&path).unwrap_or_else(|error| {
            tracing::warn!("flows of earlier programs may be lost: {error:#}");
            None
        });
        let record = record.filter(|record| record.boot == boot);
        Self {
            path,
            record: record.unwrap_or_else(|| Record {
                boot: boot.to_owned(),
                ports: PortList::default(),
            }),
        }
    }

    /// The ports.
    pub(crate) fn list(&self) -> &PortList {
        &self.record.ports
    }

    /// Records that flows get these ports from now on; `alone` if no replies are expected at
    /// others.
    pub(crate) fn begin(&mut self, ports: &PortList, alone: bool) {
        let all = if alone {
            ports.clone()
        } else {
            self.record.ports.union(ports)
        };
        if self.record.ports == all {
            return;
        }
        self.record.ports = all;
        if let Err(error) = record::write(&self.path, &self.record) {
            tracing::warn!("cannot record the port ranges; a restart may break flows: {error:#}");
        }
    }
}

/// Removes the record from the state folder.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn remove(state: &Path) -> Result<()> {
    record::remove(&state.join(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> PortList {
        text.parse().unwrap()
    }

    #[test]
    fn earlier_ports_outlive_the_agent_and_not_the_boot() {
        let folder = tempfile::tempdir().unwrap();
        let open = |boot| EarlierPorts::open(folder.path(), boot);
        let mut first = open("one");
        first.begin(&list("40960-65535"), false);
        let mut second = open("one");
        assert_eq!(*second.list(), list("40960-65535"));
        second.begin(&list("32768-33279"), false);
        assert_eq!(*open("one").list(), list("32768-33279,40960-65535"));
        assert_eq!(*open("two").list(), list(""));
        second.begin(&list("1024-2047"), true);
        assert_eq!(*open("one").list(), list("1024-2047"));
        std::fs::write(folder.path().join(NAME), "{").unwrap();
        assert_eq!(*open("one").list(), list(""));
        remove(folder.path()).unwrap();
        remove(folder.path()).unwrap();
        assert!(!folder.path().join(NAME).exists());
    }
}
