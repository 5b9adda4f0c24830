//! The number of system calls of a process.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Size of `struct perf_event_attr` of its third version (`PERF_ATTR_SIZE_VER3` in
/// `include/uapi/linux/perf_event.h`), in words.
const WORDS: usize = 12;
/// `PERF_TYPE_TRACEPOINT`, ibid.
const TRACEPOINT: u64 = 2;
/// The flag `inherit` among the flags of the attributes: later threads count too.
const INHERIT: u64 = 1 << 1;

/// Counts the system calls of a process from its creation on.
#[derive(Debug)]
pub struct SystemCalls(Vec<File>);

impl SystemCalls {
    /// Of the threads that a process has, and of those that they start.
    ///
    /// # Errors
    /// When the kernel counts no system calls, or without root.
    pub fn of(process: u32) -> Result<Self> {
        let id = thread::spawn(tracepoint)
            .join()
            .map_err(|_panic| anyhow!("the look-up of the tracepoint has panicked"))?
            .context("cannot look up the tracepoint of system calls")?;
        let threads = fs::read_dir(format!("/proc/{process}/task"))?;
        let counter = |entry: io::Result<fs::DirEntry>| -> Result<File> {
            let name = entry?.file_name();
            let thread: i32 = name.to_string_lossy().parse()?;
            open(thread, id).context("cannot count system calls")
        };
        Ok(Self(threads.map(counter).collect::<Result<_>>()?))
    }

    /// The number of system calls so far.
    ///
    /// # Errors
    /// When a counter cannot be read.
    pub fn count(&self) -> Result<u64> {
        let read = |mut file: &File| -> io::Result<u64> {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes)?;
            Ok(u64::from_ne_bytes(bytes))
        };
        Ok(self.0.iter().map(read).sum::<io::Result<u64>>()?)
    }
}

/// Id of the tracepoint at which system calls begin. The thread gets a mount namespace of its own.
fn tracepoint() -> Result<u64> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let folder = tempfile::tempdir()?;
    let flags = MsFlags::empty();
    mount(none, folder.path(), Some("tracefs"), flags, none)?;
    let id = folder.path().join("events/raw_syscalls/sys_enter/id");
    let id = fs::read_to_string(id)?.trim().parse()?;
    nix::mount::umount(folder.path())?;
    Ok(id)
}

fn open(thread: i32, tracepoint: u64) -> io::Result<File> {
    let size = u64::try_from(WORDS * size_of::<u64>()).map_err(io::Error::other)?;
    let mut attributes = [0_u64; WORDS];
    [attributes[0], attributes[1], attributes[5]] = [TRACEPOINT | size << 32, tracepoint, INHERIT];
    let (any_cpu, no_group, no_flags) = (-1, -1, 0);
    // SAFETY: the attributes live until the call returns, and have the size that they say.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_mut_ptr(),
            thread,
            any_cpu,
            no_group,
            no_flags,
        )
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the call has returned a descriptor that nobody else has.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
