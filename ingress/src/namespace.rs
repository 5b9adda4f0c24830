//! A network namespace for the time of one call.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::thread;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sched::{CloneFlags, unshare};

/// An empty network namespace. It is not mounted, so it ends with this value and the plugin that
/// inherits it, even if the process is killed. A plugin that changes devices thus changes none of
/// the host's.
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

    /// A path to it, for a process that inherits it. That process may outlive this value by a
    /// moment: when the agent ends, its files are closed before its plugin is killed.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// The file that a new process inherits.
    pub(crate) fn inherited(&self) -> Inherited {
        Inherited(self.0.as_raw_fd())
    }
}

/// The number of a namespace's file in a process that was just forked.
#[derive(Debug)]
pub(crate) struct Inherited(RawFd);

impl Inherited {
    /// Keeps the file open in the program that the process is about to execute.
    ///
    /// # Errors
    /// When the file is not open.
    pub(crate) fn keep(&self) -> io::Result<()> {
        // SAFETY: the file was open when the process was forked, and nothing closes it before exec.
        let file = unsafe { BorrowedFd::borrow_raw(self.0) };
        fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(())
    }
}
