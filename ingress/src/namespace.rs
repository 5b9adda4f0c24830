//! A network namespace for the time of one call.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::thread;

use nix::sched::{CloneFlags, unshare};

/// An empty network namespace. It is not mounted, so it ends with this value, even if the process
/// is killed. A plugin that changes devices thus changes none of the host's.
#[derive(Debug)]
pub(crate) struct Namespace(File);

impl Namespace {
    /// Makes one.
    ///
    /// # Errors
    /// When the kernel refuses: that takes `CAP_SYS_ADMIN`.
    pub(crate) fn new() -> io::Result<Self> {
        // A thread of its own, because this one has to stay where it is.
        let made = thread::spawn(|| -> io::Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        let made = made
            .join()
            .map_err(|_panic| io::Error::other("the thread ended"))?;
        made.map(Self)
    }

    /// A path to it, for processes that this one starts.
    pub(crate) fn path(&self) -> PathBuf {
        let (process, file) = (std::process::id(), self.0.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{file}"))
    }
}
