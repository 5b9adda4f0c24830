//! Files that appear and go as a whole, whatever is killed when.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::Report;
use crate::fault_points::{self, Point};

/// Prefix of a temporary file's name. Runtimes read `.conf`, `.conflist` and `.json` only.
const TEMPORARY_PREFIX: &str = ".towpath-new-";
const PERMISSIONS: u32 = 0o7777;

/// A folder, clean of our leftovers.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Opens a folder; makes it where it is missing.
    pub(super) fn open(path: &Path, report: &mut Report) -> Result<Self> {
        fs::create_dir_all(path).with_context(|| format!("make {}", path.display()))?;
        let folder = Self {
            path: path.to_owned(),
        };
        for file in folder.files()? {
            if name_of(&file).starts_with(TEMPORARY_PREFIX) {
                fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
                report.leftovers.push(file);
            }
        }
        Ok(folder)
    }

    /// Content and permissions of a regular file; `None` where there is none.
    pub(super) fn read(&self, name: &str) -> Result<Option<(Vec<u8>, u32)>> {
        let path = self.path.join(name);
        // The target of a symbolic link is not ours.
        let meta = path.symlink_metadata();
        let Some(meta) = meta.ok().filter(fs::Metadata::is_file) else {
            return Ok(None);
        };
        match fs::read(&path) {
            Ok(content) => Ok(Some((content, meta.permissions().mode() & PERMISSIONS))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    /// Writes a file unless it is in the desired state. When this returns, it survives a crash. A
    /// running program of that name goes on with its old content.
    pub(super) fn put(
        &self,
        name: &str,
        content: &[u8],
        mode: u32,
        report: &mut Report,
    ) -> Result<()> {
        let path = self.path.join(name);
        let there = self.read(name)?;
        if there.is_some_and(|(is, its_mode)| is == content && its_mode == mode) {
            report.unchanged.push(path);
            return Ok(());
        }
        self.write(&path, content, mode, || Ok(true))
            .with_context(|| format!("write {}", path.display()))?;
        report.changed.push(path);
        Ok(())
    }

    /// Writes a file unless another program changed it since it had this content.
    pub(super) fn replace(
        &self,
        name: &str,
        was: Option<&[u8]>,
        content: &[u8],
        mode: u32,
    ) -> Result<bool> {
        let path = self.path.join(name);
        let as_it_was = || Ok(self.read(name)?.map(|(is, _)| is).as_deref() == was);
        self.write(&path, content, mode, as_it_was)
            .with_context(|| format!("write {}", path.display()))
    }

    /// Sets the permissions of a file.
    pub(super) fn set_mode(&self, name: &str, mode: u32) -> Result<()> {
        let path = self.path.join(name);
        fs::set_permissions(&path, Permissions::from_mode(mode))
            .with_context(|| format!("set the permissions of {}", path.display()))
    }

    /// Gives a file another name.
    pub(super) fn rename(&self, name: &str, new: &str) -> Result<()> {
        let path = self.path.join(name);
        fs::rename(&path, self.path.join(new))
            .with_context(|| format!("rename {} to {new}", path.display()))?;
        self.sync()
    }

    /// A file of this folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn write(
        &self,
        path: &Path,
        content: &[u8],
        mode: u32,
        may: impl FnOnce() -> Result<bool>,
    ) -> Result<bool> {
        let mut temporary = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .tempfile_in(&self.path)?;
        fault_points::reach(Point::CniWrite);
        temporary.write_all(content)?;
        temporary
            .as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        temporary.as_file().sync_all()?;
        fault_points::reach(Point::CniRename);
        if !may()? {
            return Ok(false);
        }
        temporary.persist(path)?;
        self.sync()?;
        Ok(true)
    }

    /// Removes a file. Absence is success.
    pub(super) fn remove(&self, name: &str, report: &mut Report) -> Result<()> {
        let path = self.path.join(name);
        fault_points::reach(Point::CniRemove);
        match fs::remove_file(&path) {
            Ok(()) => {
                self.sync()?;
                report.changed.push(path);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
        }
    }

    /// The network configuration that runtimes take: the first by name.
    pub(super) fn first_configuration(&self) -> Result<Option<String>> {
        let names = self.files()?.into_iter().map(|file| name_of(&file));
        Ok(names
            .filter(|name| {
                Path::new(name)
                    .extension()
                    .is_some_and(|kind| kind == "conf" || kind == "conflist" || kind == "json")
            })
            .min())
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        let entries =
            fs::read_dir(&self.path).with_context(|| format!("list {}", self.path.display()))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths
            .collect::<Result<_, _>>()
            .with_context(|| format!("list {}", self.path.display()))
    }

    /// Makes what was renamed or removed last.
    fn sync(&self) -> Result<()> {
        File::open(&self.path)
            .and_then(|folder| folder.sync_all())
            .with_context(|| format!("sync {}", self.path.display()))
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
