//! Files that are fetched or built once for this user: folders below the user's cache folder.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// One kind of cached files.
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache of a name; its folder is made.
    pub(crate) fn open(name: &str) -> Result<Self> {
        let base = match env::var_os("XDG_CACHE_HOME") {
            Some(folder) => PathBuf::from(folder),
            None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cache"),
        };
        let folder = base.join("towpath").join(name);
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Waits until no other run uses the cache; the lock ends with the file that is returned.
    pub(crate) fn lock(&self) -> Result<File> {
        let file = File::create(self.folder.join("lock"))?;
        let locked = file.lock();
        locked.with_context(|| format!("cannot lock {}", self.folder.display()))?;
        Ok(file)
    }

    /// The path of an item, whether it exists or not.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Adds an item: `make` fills the folder `result` of a work folder, which is then removed. The
    /// item appears completely or not at all, because a half-filled folder of a stopped run would
    /// look complete.
    pub(crate) fn fill(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let (folder, work) = (
            self.place(name),
            self.folder.join(format!("{name}.partial")),
        );
        remove(&work)?;
        fs::create_dir_all(work.join("result"))?;
        make(&work)?;
        remove(&folder)?;
        fs::rename(work.join("result"), &folder)?;
        remove(&work)
    }
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Cache;
    use std::fs;

    #[test]
    fn what_was_not_finished_is_not_there() {
        let base = std::env::temp_dir().join(format!("towpath-cache-{}", std::process::id()));
        let cache = Cache {
            folder: base.clone(),
        };
        let failed = cache.fill("one", |work| {
            fs::write(work.join("result/file"), "half")?;
            anyhow::bail!("stopped")
        });
        assert!(failed.is_err() && !cache.place("one").exists());
        cache
            .fill("one", |work| {
                Ok(fs::write(work.join("result/file"), "whole")?)
            })
            .unwrap();
        let text = fs::read_to_string(cache.place("one").join("file")).unwrap();
        assert_eq!(text, "whole");
        assert!(!base.join("one.partial").exists());
        fs::remove_dir_all(base).unwrap();
    }
}
