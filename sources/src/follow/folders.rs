//! Signs of change from the folders that lead to a file, or to the files of a folder.
//!
//! Folders are watched, not files: a file that is replaced by renaming is another file. A
//! `ConfigMap` mount replaces a link in the same folder; a link to elsewhere has its target's folder
//! watched too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tracing::{debug, warn};

/// The folders that are watched for one file or folder.
pub(super) struct Folders {
    path: PathBuf,
    /// `None` when the kernel gives no watcher: then the interval alone has to do.
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
}

impl Folders {
    /// Prepares to watch; [`Self::follow`] begins it. `signal` is given on every change.
    pub(super) fn new(path: &Path, signal: Arc<Notify>, name: &'static str) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let is_sign = match event {
                Ok(event) => is_change(event.kind),
                Err(error) => {
                    warn!(%error, "watching the {name}");
                    true
                }
            };
            if is_sign {
                signal.notify_one();
            }
        });
        let watcher = watcher
            .inspect_err(|error| warn!(%error, "no file watcher: the {name} is polled"))
            .ok();
        Self {
            path: path.to_owned(),
            watcher,
            watched: BTreeSet::new(),
        }
    }

    /// Watches what leads to the file now. To be called again after every change: a folder that
    /// was replaced has the same name and needs a new watch.
    pub(super) fn follow(&mut self) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        loop {
            let wanted = leading_to(&self.path);
            for old in self.watched.difference(&wanted) {
                if let Err(error) = watcher.unwatch(old) {
                    debug!(%error, "a folder that is gone");
                }
            }
            for folder in &wanted {
                // Watching again what is watched is cheap, and right for a replaced folder.
                if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
                    debug!(%error, folder = %folder.display(), "watching a folder");
                }
            }
            self.watched = wanted;
            // A folder that appeared before its parent's watch began gave no sign.
            if leading_to(&self.path) == self.watched {
                return;
            }
        }
    }
}

/// The folder of the file and of what it links to; of a missing folder the nearest one above. A
/// folder is watched itself, too.
fn leading_to(path: &Path) -> BTreeSet<PathBuf> {
    let nearest = path
        .ancestors()
        .skip(1)
        .map(|folder| {
            if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            }
        })
        .find(|folder| folder.is_dir())
        .map(Path::to_owned);
    let target = path.canonicalize().ok();
    let inside = target.iter().filter(|target| target.is_dir());
    let inside = inside.flat_map(|folder| within(folder));
    let target = target.as_deref().and_then(Path::parent).map(Path::to_owned);
    nearest.into_iter().chain(target).chain(inside).collect()
}

/// A folder, and the folders of what its entries link to.
fn within(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| {
        let target = entry.path().canonicalize().ok()?;
        target.parent().map(Path::to_owned)
    });
    targets.chain([folder.to_owned()]).collect()
}

/// True if an event can mean new content. Reading the file is an event too, and must not count as a
/// change.
fn is_change(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        EventKind::Any
        | EventKind::Create(_)
        | EventKind::Modify(_)
        | EventKind::Remove(_)
        | EventKind::Other => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use notify::event::{CreateKind, ModifyKind, RemoveKind};

    #[test]
    fn reading_the_file_is_no_change() {
        for access in [
            AccessKind::Any,
            AccessKind::Read,
            AccessKind::Open(AccessMode::Any),
            AccessKind::Close(AccessMode::Read),
        ] {
            assert!(!is_change(EventKind::Access(access)), "{access:?}");
        }
        for kind in [
            EventKind::Any,
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
            EventKind::Create(CreateKind::Any),
            EventKind::Modify(ModifyKind::Any),
            EventKind::Remove(RemoveKind::Any),
            EventKind::Other,
        ] {
            assert!(is_change(kind), "{kind:?}");
        }
    }

    #[test]
    fn of_missing_folders_the_nearest_one_is_watched() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let path = top.join("a/b/node.yaml");
        assert_eq!(leading_to(&path), BTreeSet::from([top.clone()]));
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        assert_eq!(leading_to(&path), BTreeSet::from([top.join("a/b")]));
        std::fs::write(top.join("elsewhere"), "").unwrap();
        std::os::unix::fs::symlink(top.join("elsewhere"), &path).unwrap();
        assert_eq!(
            leading_to(&path),
            BTreeSet::from([top.join("a/b"), top.clone()])
        );
        let shelf = top.join("shelf");
        std::fs::create_dir(&shelf).unwrap();
        std::os::unix::fs::symlink(top.join("a/b/node.yaml"), shelf.join("one")).unwrap();
        assert_eq!(
            leading_to(&shelf),
            BTreeSet::from([top.clone(), shelf.clone()])
        );
        std::fs::write(top.join("a/other"), "").unwrap();
        std::os::unix::fs::symlink(top.join("a/other"), shelf.join("two")).unwrap();
        assert_eq!(
            leading_to(&shelf),
            BTreeSet::from([top.clone(), shelf.clone(), top.join("a")])
        );
        assert_eq!(
            leading_to(Path::new("node.yaml")),
            BTreeSet::from([PathBuf::from(".")])
        );
    }
}
