//! Programs that write to fixed places of the machine, each with a folder of the fabric in their stead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Where runtimes and the reference plugins keep what no setting moves: results of plugins, sockets
/// of containerd's shims, what `tuning` has changed, podman's cache.
const PLACES: [(&str, &str); 4] = [
    ("/var/lib/cni", "var-lib-cni"),
    ("/var/lib/containers", "var-lib-containers"),
    ("/run/containerd", "run-containerd"),
    ("/run/cni", "run-cni"),
];

/// Where `ip netns` has namespaces. It makes mounts there seen everywhere.
const NAMESPACES: &str = "/run/netns";

/// A folder whose mounts the whole machine sees, whoever makes them.
#[derive(Debug)]
pub(crate) struct Shared {
    folder: PathBuf,
    /// More places, and what programs see there.
    places: Vec<(PathBuf, PathBuf)>,
}

impl Shared {
    /// Makes a folder one of that kind. The mount goes with the fabric.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let flagged = |source: Option<&Path>, flags| {
            mount(source, folder, None::<&str>, flags, None::<&str>)
                .with_context(|| format!("cannot share {}: needs root", folder.display()))
        };
        flagged(Some(folder), MsFlags::MS_BIND)?;
        // The one that it would be a copy of may be shared with others.
        flagged(None, MsFlags::MS_PRIVATE)?;
        flagged(None, MsFlags::MS_SHARED)?;
        Ok(Self {
            folder: folder.to_owned(),
            places: Vec::new(),
        })
    }

    /// The same with more places: what programs see at the first path of each pair is the second one.
    pub(crate) fn with(mut self, places: impl IntoIterator<Item = (PathBuf, PathBuf)>) -> Self {
        self.places.extend(places);
        self
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// True if programs see something else at a place than the machine has there.
    pub(super) fn covers(&self, place: &Path) -> bool {
        self.all().iter().any(|(covered, _)| covered == place)
    }

    /// Every place, with what programs see there.
    fn all(&self) -> Vec<(PathBuf, PathBuf)> {
        let fixed = PLACES.map(|(place, name)| (place.into(), self.folder.join(name)));
        [fixed.into(), self.places.clone()].concat()
    }
}

/// Starts a command that sees folders of its own in those places. What it mounts below `shared`,
/// such as a pod's network namespace, the rest of the machine sees too.
pub(crate) fn spawn(shared: &Shared, command: &mut Command) -> Result<Child> {
    let work = || -> Result<Child> {
        // This thread's alone, and that of whatever it starts.
        unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace: needs root")?;
        keep_mounts_here(shared.folder(), shared.covers(Path::new(NAMESPACES)))?;
        for (place, instead) in &shared.all() {
            for folder in [place, instead] {
                fs::create_dir_all(folder)?;
            }
            let bound = mount(
                Some(instead),
                place,
                None::<&str>,
                // Network namespaces of pods are mounted there where an earlier program made them.
                MsFlags::MS_BIND | MsFlags::MS_REC,
                None::<&str>,
            );
            bound.with_context(|| format!("cannot mount over {}", place.display()))?;
        }
        let started = command.spawn();
        started.with_context(|| format!("cannot start {}", command.get_program().display()))
    };
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Has mounts of this namespace stay in it, but for those below a folder, and for network namespaces
/// where the whole machine has them, unless that place is to be `covered`: podman has no setting for
/// that, and the agent has to see them.
fn keep_mounts_here(folder: &Path, covered: bool) -> Result<()> {
    let mounts = fs::read_to_string("/proc/thread-self/mounts")?;
    let points = mounts
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(Path::new)
        .filter(|point| !point.starts_with(folder) && (covered || *point != Path::new(NAMESPACES)));
    for point in points {
        // One below another mount cannot be named, nor does anything come to lie in it.
        let _covered = mount(
            None::<&str>,
            point,
            None::<&str>,
            MsFlags::MS_PRIVATE,
            None::<&str>,
        );
    }
    if covered {
        // Whoever looks up what is mounted there takes the first one that it finds. It need not be one.
        let _none = umount2(NAMESPACES, MntFlags::MNT_DETACH);
    }
    Ok(())
}
