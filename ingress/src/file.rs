//! The record on disk: there as a whole or not at all, whatever is killed when.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::record::Record;

/// Name of the record in its folder.
const NAME: &str = "ingress.json";
/// Name of a record that cannot be read.
const DAMAGED: &str = "ingress.json.damaged";

/// The file.
#[derive(Debug)]
pub(crate) struct RecordFile {
    folder: PathBuf,
}

impl RecordFile {
    /// The file in a folder, which need not be there.
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Reads the record; an empty one without a file.
    ///
    /// Unreadable parts are left out, and the whole file is set aside for inspection. The second
    /// value is its new path with the reason.
    ///
    /// # Errors
    /// If the file cannot be opened or copied.
    pub(crate) fn read(&self) -> io::Result<(Record, Option<String>)> {
        let path = self.folder.join(NAME);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok((Record::default(), None));
            }
            text => text?,
        };
        let (record, faults) = parse(&text);
        if faults.is_empty() {
            return Ok((record, None));
        }
        let aside = self.folder.join(DAMAGED);
        fs::copy(path, &aside)?;
        // Otherwise each start would set it aside again.
        self.write(&record)?;
        Ok((
            record,
            Some(format!("{}: {}", aside.display(), faults.join("; "))),
        ))
    }

    /// Writes the record. An empty one is no file.
    ///
    /// # Errors
    /// When it cannot be written; the earlier one is in force then.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let path = self.folder.join(NAME);
        if record.entries.is_empty() {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                removed => removed?,
            }
        } else {
            fs::create_dir_all(&self.folder)?;
            let mut temporary = tempfile::NamedTempFile::new_in(&self.folder)?;
            temporary.write_all(&serde_json::to_vec_pretty(record)?)?;
            temporary.as_file().sync_all()?;
            temporary.persist(&path)?;
        }
        File::open(&self.folder)?.sync_all()
    }
}

/// The entries that can be read, and the faults of the others.
fn parse(text: &[u8]) -> (Record, Vec<String>) {
    let stored: Stored = match serde_json::from_slice(text) {
        Ok(stored) => stored,
        Err(error) => return (Record::default(), vec![error.to_string()]),
    };
    let mut record = Record::default();
    let mut faults = Vec::new();
    for (place, entry) in stored.entries.into_iter().enumerate() {
        match serde_json::from_value(entry) {
            Ok(entry) => record.entries.push(entry),
            Err(error) => faults.push(format!("entries[{place}]: {error}")),
        }
    }
    (record, faults)
}

/// The record with entries that are not read yet.
#[derive(Deserialize)]
struct Stored {
    #[serde(default)]
    entries: Vec<Value>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::State;

    /// A record as the first agents wrote it: an entry in each state.
    const FIRST: &str = r#"{"entries": [
        {"request": {"owner": {"container-id": "a", "interface": "eth0"}, "plugin": "/p",
            "folders": ["/f"], "args": "x", "config": "{}"},
         "state": "asked"},
        {"request": {"owner": {"container-id": "b", "interface": "eth0"}, "plugin": "/p",
            "folders": [], "args": "", "config": "{}"},
         "state": {"given": {"addresses": ["10.0.1.5", "2001:db8::5"], "result": {"ips": []}}}},
        {"request": {"owner": {"container-id": "c", "interface": "eth0"}, "plugin": "/p",
            "folders": [], "args": "", "config": "{}"},
         "state": "leaving"}
    ]}"#;

    fn stored(folder: &Path, text: &str) -> RecordFile {
        fs::write(folder.join(NAME), text).unwrap();
        RecordFile::new(folder)
    }

    #[test]
    fn a_damaged_record_is_set_aside_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = RecordFile::new(folder.path());
        assert_eq!(file.read().unwrap(), (Record::default(), None));
        let file = stored(folder.path(), "{\"entries\": [");
        let (record, fault) = file.read().unwrap();
        let fault = fault.unwrap();
        assert!(fault.contains("ingress.json.damaged: EOF"), "{fault}");
        assert_eq!(record, Record::default());
        assert_eq!(file.read().unwrap(), (Record::default(), None));
        assert!(folder.path().join(DAMAGED).exists());
    }

    #[test]
    fn an_entry_that_cannot_be_read_costs_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let text = FIRST.replacen("\"container-id\": \"b\"", "\"id\": \"b\"", 1);
        let file = stored(folder.path(), &text);
        let (record, fault) = file.read().unwrap();
        let fault = fault.unwrap();
        assert!(
            fault.contains("ingress.json.damaged: entries[1]: "),
            "{fault}"
        );
        let ids = record.entries.iter();
        let ids: Vec<_> = ids
            .map(|entry| entry.request.owner.container_id.as_str())
            .collect();
        assert_eq!(ids, ["a", "c"]);
        assert_eq!(
            fs::read_to_string(folder.path().join(DAMAGED)).unwrap(),
            text
        );
        assert_eq!(file.read().unwrap(), (record, None));
    }

    #[test]
    fn the_form_of_a_record_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = stored(folder.path(), FIRST);
        let (record, fault) = file.read().unwrap();
        assert_eq!(fault, None);
        file.write(&record).unwrap();
        let written = fs::read_to_string(folder.path().join(NAME)).unwrap();
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(json(&written), json(FIRST));
    }

    #[test]
    fn what_a_later_agent_adds_to_a_record_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"entries": [{"request": {"owner": {"container-id": "a", "interface": "eth0"},
            "plugin": "/p", "folders": [], "args": "", "config": "{}", "more": 1},
            "state": {"renewing": {"since": 1}}, "more": 1}], "more": 1}"#;
        let file = stored(folder.path(), text);
        let (record, fault) = file.read().unwrap();
        assert_eq!(fault, None);
        // Of a state that is not known here, DEL is sent.
        let states: Vec<_> = record.entries.iter().map(|entry| &entry.state).collect();
        assert_eq!(states, [&State::Asked]);
        file.write(&record).unwrap();
        assert_eq!(file.read().unwrap(), (record, None));
        file.write(&Record::default()).unwrap();
        file.write(&Record::default()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
