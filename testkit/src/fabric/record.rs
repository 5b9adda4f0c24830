//! The folder of a fabric, and the removal of remains of dead runs.
//!
//! Everything that a fabric makes carries its id, and the id begins with the owner's process id.
//! A fabric whose owner is gone is removed by the next run, unless it was left up on purpose.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::command;
use super::netns::Netns;
use crate::fabric::node::cgroup;

const ROOT: &str = "/run/towpath-fabric";
const KEEP: &str = "keep";
const LOCK: &str = ".lock";

/// The folder of one fabric, with a bpffs of its own. Dropping it removes both.
#[derive(Debug)]
pub struct Record {
    id: String,
    keep: AtomicBool,
}

impl Record {
    /// Sweeps, then makes the folder of a new fabric.
    ///
    /// # Errors
    /// When the folder cannot be made or bpffs not be mounted.
    pub fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        sweep()?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", std::process::id());
        // A dead process of the same id may have left one.
        remove(&id)?;
        let record = Self {
            id,
            keep: AtomicBool::new(false),
        };
        fs::create_dir_all(record.bpffs())
            .context("cannot make the fabric's folder: needs root")?;
        mount(
            Some("bpf"),
            &record.bpffs(),
            Some("bpf"),
            MsFlags::empty(),
            None::<&str>,
        )
        .context("cannot mount bpffs: this needs root")?;
        Ok(record)
    }

    /// Prefix of the names of the fabric's namespaces.
    #[must_use]
    pub fn prefix(&self) -> String {
        prefix(&self.id)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        folder(&self.id)
    }

    /// The cgroup for processes of the fabric outside of its namespaces, if it is made: the pods of
    /// a container runtime.
    #[must_use]
    pub fn cgroup(&self) -> String {
        cgroup(&self.id)
    }

    /// Mount point of the fabric's own bpffs.
    #[must_use]
    pub fn bpffs(&self) -> PathBuf {
        self.folder().join("bpf")
    }

    /// Leaves the fabric up when its owner ends.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn keep(&self) -> Result<()> {
        fs::write(self.folder().join(KEEP), "")?;
        self.keep.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// True if the fabric must stay up.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.keep.load(Ordering::Relaxed)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.is_kept() {
            return;
        }
        if let Err(error) = remove(&self.id) {
            eprintln!("cannot remove fabric {}: {error:#}", self.id);
        }
    }
}

fn prefix(id: &str) -> String {
    format!("tp-{id}")
}

fn folder(id: &str) -> PathBuf {
    Path::new(ROOT).join(id)
}

/// Removes the fabrics of owners that are gone.
///
/// # Errors
/// When one of them cannot be removed.
pub fn sweep() -> Result<()> {
    fs::create_dir_all(ROOT).context("cannot make the fabrics' folder: this needs root")?;
    // Two sweeps must not run at once. The lock goes with the file.
    let lock = fs::File::create(Path::new(ROOT).join(LOCK))?;
    lock.lock()?;
    for id in ids()? {
        let owner = id.split('-').next().unwrap_or_default();
        let owner_lives = Path::new("/proc").join(owner).exists();
        if !owner_lives && !folder(&id).join(KEEP).exists() {
            remove(&id)?;
        }
    }
    Ok(())
}

/// Removes the fabrics that were left up on purpose, and returns their number.
///
/// # Errors
/// When one of them cannot be removed.
pub fn remove_kept() -> Result<usize> {
    let kept = ids()?
        .into_iter()
        .filter(|id| folder(id).join(KEEP).exists());
    let mut count = 0;
    for id in kept {
        remove(&id)?;
        count += 1;
    }
    Ok(count)
}

fn ids() -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(ROOT) else {
        return Ok(Vec::new());
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry?.file_name().into_string().ok();
        ids.extend(name.filter(|name| name != LOCK));
    }
    Ok(ids)
}

fn cgroup(id: &str) -> String {
    prefix(id)
}

/// Kills the processes in a fabric's namespaces and in its cgroup, then removes the namespaces, the
/// cgroup, the mounts, the folder.
fn remove(id: &str) -> Result<()> {
    let prefix = format!("{}-", prefix(id));
    let names = command::run(Command::new("ip").args(["netns", "list"]))?;
    for name in names
        .lines()
        .filter_map(|line| line.split_whitespace().next())
    {
        if name.starts_with(&prefix) {
            Netns::kill_processes_in(name)?;
            Netns::delete(name)?;
        }
    }
    cgroup::remove(&cgroup(id))?;
    let folder = folder(id);
    if !folder.exists() {
        return Ok(());
    }
    unmount_below(&folder)?;
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// Removes the mounts at a folder and below it: a bpffs, and those of a container runtime.
fn unmount_below(folder: &Path) -> Result<()> {
    unmount(|point| point.starts_with(folder))
}

/// Removes the mounts below a folder, but not the one at the folder itself.
pub(crate) fn unmount_inside(folder: &Path) -> Result<()> {
    unmount(|point| point.starts_with(folder) && point != folder)
}

fn unmount(is_wanted: impl Fn(&Path) -> bool) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let points = mounts
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(Path::new)
        .filter(|point| is_wanted(point));
    // Later mounts lie on top of earlier ones, or below them in the tree.
    for point in points.collect::<Vec<_>>().into_iter().rev() {
        umount2(point, MntFlags::MNT_DETACH)
            .with_context(|| format!("cannot unmount {}", point.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_run_left_is_swept() {
        // Process ids end at 4194304 (PID_MAX_LIMIT in include/linux/threads.h).
        let id = "4194305-0";
        let name = format!("{}-node", prefix(id));
        // A run that was killed here may have left one; usually there is none.
        let _none = command::run(Command::new("ip").args(["netns", "del", &name]));
        std::mem::forget(Netns::create(&name).unwrap());
        // Last, because a sweep of another test may run at any time.
        fs::create_dir_all(folder(id)).unwrap();
        sweep().unwrap();
        assert!(!folder(id).exists());
        assert!(!Netns::path_of(&name).exists());
    }

    #[test]
    fn a_record_goes_with_its_mount() {
        let record = Record::create().unwrap();
        let folder = record.folder();
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        assert!(mounts.contains(&format!("{} bpf", record.bpffs().display())));
        drop(record);
        assert!(!folder.exists());
    }
}
