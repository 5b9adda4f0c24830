//! Container runtimes and the reference CNI plugins, in the versions that the suite `cri` runs: fetched
//! and unpacked into the user's cache folder. Installed, they would start services.

use std::path::PathBuf;

use anyhow::Result;

use super::unpacked;
use crate::console::note;
use crate::setup::cache::Cache;

/// Names the folder of the container runtimes to the suite `cri` and to the benchmark.
pub(crate) const RUNTIMES: &str = "TOWPATH_RUNTIMES";

/// Packages of one release of Debian that are unpacked into one folder.
struct Set {
    /// The folder's name, which the tests know.
    name: &'static str,
    /// The release.
    suite: &'static str,
    packages: &'static [&'static str],
    /// Where the set is whole, this is there.
    probe: &'static str,
}

const SETS: &[Set] = &[
    // CNI 1.0, as in most clusters; its runc runs later releases of containerd too.
    Set {
        name: "containerd-1",
        suite: "bookworm",
        packages: &["containerd", "runc"],
        probe: "usr/bin/containerd",
    },
    // CNI 1.1.
    Set {
        name: "containerd-2",
        suite: "forky",
        packages: &["containerd"],
        probe: "usr/bin/containerd",
    },
    Set {
        name: "plugins-1.1",
        suite: "bookworm",
        packages: &["containernetworking-plugins"],
        probe: "usr/lib/cni/bridge",
    },
    Set {
        name: "plugins-1.9",
        suite: "forky",
        packages: &["containernetworking-plugins"],
        probe: "usr/lib/cni/bridge",
    },
    // The last release with CNI.
    Set {
        name: "podman",
        suite: "bookworm",
        packages: &["podman", "conmon"],
        probe: "usr/bin/podman",
    },
];

/// The folder that has every set, each in a folder of its name. What they need of the system is
/// [`Need::Cri`](super::Need).
pub(crate) fn runtimes() -> Result<PathBuf> {
    let cache = Cache::open("runtimes")?;
    let _lock = cache.lock()?;
    for set in SETS {
        let folder = cache.place(set.name);
        if folder.join(set.probe).exists() {
            continue;
        }
        let (packages, place) = (set.packages.join(" "), folder.display());
        note(&format!(
            "setup: unpacking {packages} of {} into {place}",
            set.suite
        ));
        unpacked::fetch(&cache, set.name, set.suite, set.packages)?;
    }
    Ok(cache.place(""))
}
