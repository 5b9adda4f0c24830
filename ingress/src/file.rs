//! The record on disk: there as a whole or not at all, whatever is killed when.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

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

    /// Reads the record; an empty one where there is none. One that cannot be read is set aside, for
    /// whoever looks into it; `Err` holds its new path and the reason then.
    ///
    /// # Errors
    /// When the file cannot be opened or renamed.
    pub(crate) fn read(&self) -> io::Result<Result<Record, String>> {
        let path = self.folder.join(NAME);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Ok(Record::default())),
            text => text?,
        };
        let error = match serde_json::from_slice(&text) {
            Ok(record) => return Ok(Ok(record)),
            Err(error) => error,
        };
        let aside = self.folder.join(DAMAGED);
        fs::rename(path, &aside)?;
        Ok(Err(format!("{}: {error}", aside.display())))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_record_is_set_aside_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = RecordFile::new(folder.path());
        assert_eq!(file.read().unwrap(), Ok(Record::default()));
        fs::write(folder.path().join(NAME), "{\"entries\": [").unwrap();
        let error = file.read().unwrap().unwrap_err();
        assert!(error.contains("ingress.json.damaged: EOF"), "{error}");
        assert_eq!(file.read().unwrap(), Ok(Record::default()));
        assert!(folder.path().join(DAMAGED).exists());
    }

    #[test]
    fn what_a_later_agent_adds_to_a_record_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"entries": [{"request": {"owner": {"container-id": "a", "interface": "eth0"},
            "plugin": "/p", "folders": [], "args": "", "config": "{}", "more": 1},
            "state": "leaving", "more": 1}], "more": 1}"#;
        fs::write(folder.path().join(NAME), text).unwrap();
        let file = RecordFile::new(folder.path());
        let record = file.read().unwrap().unwrap();
        assert_eq!(record.entries.len(), 1);
        file.write(&record).unwrap();
        assert_eq!(file.read().unwrap(), Ok(record));
        file.write(&Record::default()).unwrap();
        file.write(&Record::default()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
