//! The last good document, kept on disk: it outlives the agent, within one boot.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Name of the record in the state folder.
const NAME: &str = "node.json";

/// The place where the last good document is kept.
#[derive(Clone, Debug)]
pub struct Kept {
    path: PathBuf,
    boot: String,
}

/// The content of the record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Record {
    /// The boot that it is of: another boot may be another machine's.
    boot: String,
    /// Name of the source: a file's path, or the object's kind and name.
    source: String,
    /// The document as the source had it.
    document: String,
}

impl Kept {
    /// A place in the state folder, for the boot with this id.
    #[must_use]
    pub fn new(state: &Path, boot: &str) -> Self {
        Self {
            path: state.join(NAME),
            boot: boot.to_owned(),
        }
    }

    /// The document that an agent of this boot kept of the source. One that cannot be read is as good
    /// as none.
    pub(crate) fn read(&self, source: &str) -> Option<String> {
        let record = self.record().unwrap_or_else(|error| {
            tracing::warn!("the document of an earlier agent is not used: {error:#}");
            None
        })?;
        let is_ours = record.boot == self.boot && record.source == source;
        is_ours.then_some(record.document)
    }

    fn record(&self) -> Result<Option<Record>> {
        let read = || format!("read {}", self.path.display());
        match fs::read(&self.path) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).with_context(read)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(read),
        }
    }

    /// Keeps a good document of the source in place of the last one.
    pub(crate) fn write(&self, source: &str, document: &str) {
        let record = Record {
            boot: self.boot.clone(),
            source: source.to_owned(),
            document: document.to_owned(),
        };
        if let Err(error) = self.replace(&record) {
            tracing::warn!("a restart may not know the node document: {error:#}");
        }
    }

    fn replace(&self, record: &Record) -> Result<()> {
        let write = || -> Result<()> {
            let folder = self.path.parent().context("a path without a folder")?;
            fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            file.persist(&self.path)?;
            Ok(())
        };
        write().with_context(|| format!("write {}", self.path.display()))
    }
}

/// Removes the record from the state folder.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn remove(state: &Path) -> Result<()> {
    let path = state.join(NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_that_of_its_boot_and_source_alone() {
        let state = tempfile::tempdir().unwrap();
        let kept = Kept::new(state.path(), "this");
        assert_eq!(kept.read("CiliumNode one"), None);
        kept.write("CiliumNode one", "a \"text\"\n");
        assert_eq!(kept.read("CiliumNode one").unwrap(), "a \"text\"\n");
        assert_eq!(kept.read("CiliumNode two"), None);
        assert_eq!(
            Kept::new(state.path(), "other").read("CiliumNode one"),
            None
        );
        remove(state.path()).unwrap();
        assert_eq!(kept.read("CiliumNode one"), None);
        remove(state.path()).unwrap();
    }

    #[test]
    fn one_that_cannot_be_read_is_as_good_as_none() {
        let state = tempfile::tempdir().unwrap();
        let kept = Kept::new(state.path(), "this");
        for content in [&b""[..], b"{\"boot\":\"this\"", b"\xff\x00", b"[]"] {
            fs::write(state.path().join(NAME), content).unwrap();
            assert_eq!(kept.read("one"), None);
            kept.write("one", "good");
            assert_eq!(kept.read("one").as_deref(), Some("good"));
        }
    }
}
