//! The number of system calls that something takes.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{FromRawFd as _, OwnedFd};

use nix::mount::{MsFlags, mount};

/// Size of `struct perf_event_attr` of its third version (`PERF_ATTR_SIZE_VER3` in
/// `include/uapi/linux/perf_event.h`), in words.
const WORDS: usize = 12;
/// `PERF_TYPE_TRACEPOINT`, ibid.
const TRACEPOINT: u64 = 2;

/// The number of system calls that this thread makes in a function, whose thread must have a mount
/// namespace of its own.
pub(crate) fn count(of: impl FnOnce()) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let (none, flags) = (None::<&str>, MsFlags::empty());
    mount(none, folder.path(), Some("tracefs"), flags, none).unwrap();
    let id = folder.path().join("events/raw_syscalls/sys_enter/id");
    let id = fs::read_to_string(id).unwrap().trim().parse().unwrap();
    let mut attributes = [0_u64; WORDS];
    attributes[0] = TRACEPOINT | (size_of_val(&attributes) as u64) << 32;
    attributes[1] = id;
    let (this_thread, any_cpu, no_group) = (0, -1, -1);
    // SAFETY: the attributes live until the call returns, and have the size that they say.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_mut_ptr(),
            this_thread,
            any_cpu,
            no_group,
            0,
        )
    };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the call has returned a descriptor that nobody else has.
    let mut counter = File::from(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) });
    let mut read = || {
        let mut bytes = [0; 8];
        counter.read_exact(&mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    };
    let before = read();
    of();
    // The last read counts itself.
    read() - before - 1
}
