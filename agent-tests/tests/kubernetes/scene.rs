//! A network namespace and a folder for one API server.

use std::sync::atomic::{AtomicU32, Ordering};

use bpf_tests::fabric::Netns;
use tempfile::TempDir;

/// What an API server needs. It goes when this is dropped.
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
