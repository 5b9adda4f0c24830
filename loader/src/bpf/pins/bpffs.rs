//! The BPF filesystem that holds the pins.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

/// Where the kernel makes room for the BPF filesystem (Documentation/filesystems/sysfs.rst).
const DEFAULT: &str = "/sys/fs/bpf";

/// Makes sure that `root` is a folder on a BPF filesystem; mounts one at the kernel's usual place
/// if `root` lies below it and nothing is mounted there.
///
/// # Errors
/// When it is not, and how to make it so.
pub fn prepare(root: &Path) -> Result<()> {
    let default = Path::new(DEFAULT);
    if root.starts_with(default) && default.is_dir() && !is_bpffs(default)? {
        mount_at(default)?;
    }
    let existing = root
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    if !is_bpffs(existing)? {
        bail!(
            "datapath.pin-root {} is not on a BPF filesystem; allowed is a folder below one, such as \
             {DEFAULT}/towpath (`mount -t bpf bpf {DEFAULT}` mounts it)",
            root.display()
        );
    }
    fs::create_dir_all(root)
        .with_context(|| format!("cannot make datapath.pin-root {}", root.display()))
}

/// Mount point of the BPF filesystem that contains a folder: the first of the folder's ancestors on
/// it.
pub(in crate::bpf) fn mount_point(root: &Path) -> PathBuf {
    let device = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.dev());
    let same = |path: &&Path| device(path).is_some() && device(path) == device(root);
    let first = root.ancestors().take_while(same).last();
    first.unwrap_or(root).to_owned()
}

/// Mounts a BPF filesystem where there was one and is none any more.
///
/// # Errors
/// When the kernel refuses, or the folder is gone.
pub(in crate::bpf) fn restore(mount_point: &Path) -> Result<()> {
    if mount_point.is_dir() && !is_bpffs(mount_point)? {
        mount_at(mount_point)?;
    }
    Ok(())
}

fn mount_at(folder: &Path) -> Result<()> {
    let at = folder.display();
    mount(
        Some("bpf"),
        folder,
        Some("bpf"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        Some("mode=0700"),
    )
    .with_context(|| format!("cannot mount a BPF filesystem at {at}"))?;
    tracing::info!("mounted a BPF filesystem at {at}");
    Ok(())
}

fn is_bpffs(path: &Path) -> Result<bool> {
    let stat = statfs(path).with_context(|| format!("cannot examine {}", path.display()))?;
    Ok(stat.filesystem_type() == BPF_FS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_folder_elsewhere_and_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("pins");
        let error = prepare(&root).unwrap_err().to_string();
        assert!(error.contains("is not on a BPF filesystem"), "{error}");
        assert!(!root.exists());
    }
}
