//! A network namespace and a folder for one API server.

use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;
use testkit::fabric::Netns;

/// Namespace and folder of an API server, which are removed on drop.
pub(crate) struct Place {
    pub(crate) netns: Netns,
    pub(crate) folder: TempDir,
}

impl Place {
    pub(crate) fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-api-{}-{number}", std::process::id());
        Self {
            netns: Netns::create(&name).unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }
}
