//! Programs that write to fixed paths of the machine, each with a folder of the fabric mounted
//! there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Fixed paths of runtimes and the reference plugins: results of plugins, sockets of containerd's
/// shims, changes by `tuning`, podman's cache.
const PLACES: [(&str, &str); 4] = [
    ("/var/lib/cni", "var-lib-cni"),
    ("/var/lib/containers", "var-lib-containers"),
    ("/run/containerd", "run-containerd"),
    ("/run/cni", "run-cni"),
];

/// The folder of `ip netns`, which shares mounts there with the whole machine.
const NAMESPACES: &str = "/run/netns";

/// A folder whose mounts the whole machine sees, whichever namespace they are made in.
#[derive(Debug)]
pub(crate) struct Shared {
    folder: PathBuf,
    /// More paths, each with the folder that programs see there.
    places: Vec<(PathBuf, PathBuf)>,
}

impl Shared {
    /// Makes a folder shared. The mount goes with the fabric.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let flagged = |source: Option<&Path>, flags| {
            mount(source, folder, None::<&str>, flags, None::<&str>)
                .with_context(|| format!("cannot share {}: needs root", folder.display()))
        };
        flagged(Some(folder), MsFlags::MS_BIND)?;
        // The new mount may belong to the peer group of another one.
        flagged(None, MsFlags::MS_PRIVATE)?;
        flagged(None, MsFlags::MS_SHARED)?;
        Ok(Self {
            folder: folder.to_owned(),
            places: Vec::new(),
        })
    }

    /// Adds paths: programs see the second path of each pair at the first one.
    pub(crate) fn with(mut self, places: impl IntoIterator<Item = (PathBuf, PathBuf)>) -> Self {
        self.places.extend(places);
        self
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// True if programs see another folder at a path than the machine has there.
    pub(super) fn covers(&self, place: &Path) -> bool {
        self.all().iter().any(|(covered, _)| covered == place)
    }

    /// Every path, with the folder that programs see there.
    fn all(&self) -> Vec<(PathBuf, PathBuf)> {
        let fixed = PLACES.map(|(place, name)| (place.into(), self.folder.join(name)));
        [fixed.into(), self.places.clone()].concat()
    }
}

/// Starts a command that sees folders of its own at those paths. The rest of the machine sees its
/// mounts below `shared`, such as a pod's network namespace.
pub(crate) fn spawn(shared: &Shared, command: &mut Command) -> Result<Child> {
    let work = || -> Result<Child> {
        // The namespace is that of this thread and of the processes that it starts.
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
                // An earlier program may have mounted network namespaces of pods there.
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

/// Keeps mounts of this namespace from propagating, except those below a folder and, unless
/// `covered`, those of network namespaces.
///
/// podman has no setting for the path of network namespaces, and the agent must see them.
fn keep_mounts_here(folder: &Path, covered: bool) -> Result<()> {
    let mounts = fs::read_to_string("/proc/thread-self/mounts")?;
    let points = mounts
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(Path::new)
        .filter(|point| !point.starts_with(folder) && (covered || *point != Path::new(NAMESPACES)));
    for point in points {
        // A mount below another one cannot be named, and no mount is made in it.
        let _covered = mount(
            None::<&str>,
            point,
            None::<&str>,
            MsFlags::MS_PRIVATE,
            None::<&str>,
        );
    }
    if covered {
        // Programs find the first mount at this path, which may be an old one. There may be none.
        let _none = umount2(NAMESPACES, MntFlags::MNT_DETACH);
    }
    Ok(())
}
