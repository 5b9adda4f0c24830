//! Control groups of one name, in whatever hierarchies the machine has.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fabric::eventually::eventually;

const ROOT: &str = "/sys/fs/cgroup";
/// The time that the kernel may take to end a killed process.
const END: Duration = Duration::from_secs(10);

/// Makes a group in every hierarchy, as a kubelet expects its root.
///
/// # Errors
/// When one cannot be made.
pub(in crate::fabric) fn make(name: &str) -> Result<()> {
    let mut hierarchies = vec![PathBuf::from(ROOT)];
    for entry in fs::read_dir(ROOT)? {
        hierarchies.push(entry?.path());
    }
    hierarchies.retain(|folder| folder.join("cgroup.procs").is_file());
    // Of cgroup v2, where there are no others.
    if hierarchies
        .first()
        .is_some_and(|first| first == Path::new(ROOT))
    {
        hierarchies.truncate(1);
    }
    for hierarchy in hierarchies {
        let group = hierarchy.join(name);
        fs::create_dir_all(&group).with_context(|| format!("make {}", group.display()))?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            // Of v1: a group without them takes no process.
            if let (Ok(all), true) = (fs::read(hierarchy.join(file)), group.join(file).exists()) {
                fs::write(group.join(file), all)?;
            }
        }
    }
    Ok(())
}

/// Kills every process in the groups of a name and below, and removes the groups.
///
/// # Errors
/// When they cannot be removed.
pub(in crate::fabric) fn remove(name: &str) -> Result<()> {
    for group in groups(name)? {
        eventually(END, "a cgroup is removed", || {
            for folder in tree(&group) {
                for pid in processes(&folder) {
                    // It may have ended by itself.
                    let _gone = kill(pid, Signal::SIGKILL);
                }
                fs::remove_dir(&folder)
                    .with_context(|| format!("cannot remove {}", folder.display()))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The group in the one hierarchy of cgroup v2, or in each of v1.
fn groups(name: &str) -> Result<Vec<PathBuf>> {
    let mut found = vec![Path::new(ROOT).join(name)];
    for entry in fs::read_dir(ROOT)? {
        found.push(entry?.path().join(name));
    }
    found.retain(|group| group.is_dir());
    Ok(found)
}

/// A group and all below, the lowest first.
fn tree(group: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let entries = fs::read_dir(group).into_iter().flatten();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            folders.extend(tree(&path));
        }
    }
    folders.push(group.to_owned());
    folders
}

fn processes(group: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let numbers = text.lines().filter_map(|line| line.parse().ok());
    numbers.map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_runs_in_a_group_goes_with_it() {
        let name = format!("towpath-test-{}", std::process::id());
        let hierarchy = fs::read_dir(ROOT).unwrap().find_map(|entry| {
            let path = entry.unwrap().path();
            path.join("cgroup.procs").exists().then_some(path)
        });
        let hierarchy = hierarchy.unwrap_or_else(|| ROOT.into());
        let inner = hierarchy.join(&name).join("inner");
        fs::create_dir_all(&inner).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(inner.join("cgroup.procs"), child.id().to_string()).unwrap();
        // A zombie is in its group until its parent waits for it.
        let waiting = std::thread::spawn(move || child.wait());
        remove(&name).unwrap();
        assert!(!waiting.join().unwrap().unwrap().success());
        assert!(!hierarchy.join(&name).exists());
    }
}
