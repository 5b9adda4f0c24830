//! Records of the agent on disk: each is one JSON value in a file, replaced as a whole.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use document::read_file;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a record; none without a file.
///
/// # Errors
/// If the file cannot be read, or is no such record.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let context = || format!("read {}", path.display());
    match read_file(path) {
        Ok(text) => Ok(Some(serde_json::from_str(&text).with_context(context)?)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error).with_context(context),
    }
}

/// Replaces a record. A power cut may lose it, since records are for one boot.
///
/// # Errors
/// If the file cannot be written.
pub fn write<T: Serialize>(path: &Path, record: &T) -> Result<()> {
    let write = || -> Result<()> {
        let folder = path.parent().context("a path without a folder")?;
        fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("write {}", path.display()))
}

/// Removes a record, if there is one.
///
/// # Errors
/// If the file cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
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
    fn a_record_is_read_as_it_was_written_and_a_missing_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state").join("record.json");
        assert_eq!(read::<u8>(&path).unwrap(), None);
        write(&path, &7).unwrap();
        assert_eq!(read::<u8>(&path).unwrap(), Some(7));
        let error = format!("{:#}", read::<String>(&path).unwrap_err());
        assert!(error.starts_with("read "), "{error}");
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }
}
