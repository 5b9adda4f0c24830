//! The few calls of bpf(2) that aya lacks: links by interface index, their kernel information, and
//! queries that name the links.
//!
//! aya attaches by device name, which may change between look-up and attachment, and does not
//! expose the device in a link's information.

pub(super) mod run;
pub(super) mod table;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use api::types::Direction;
use aya_obj::generated::{BPF_F_AFTER, bpf_attach_type, bpf_cmd, bpf_link_type};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Most programs on one TCX hook (`BPF_MPROG_MAX` in `include/linux/bpf_mprog.h`).
const MPROG_MAX: usize = 64;

/// A part of `union bpf_attr` (include/uapi/linux/bpf.h) or of what the kernel writes back: plain
/// integers without padding, every bit pattern a value.
///
/// # Safety
/// Every pointer in it must be valid for what the command does with it.
unsafe trait Attribute {}

#[repr(C)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct ObjectInfo {
    fd: u32,
    length: u32,
    info: u64,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    pad: u32,
    expected_revision: u64,
}

#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

#[repr(C)]
struct LinkById {
    id: u32,
}

#[repr(C)]
struct NextId {
    start: u32,
    next: u32,
    flags: u32,
}

#[repr(C)]
struct LinkDetach {
    link: u32,
}

#[repr(C)]
struct ProgramQuery {
    ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    pad: u32,
    program_attach_flags: u64,
    links: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// `struct bpf_link_info` with its `tcx` part.
#[repr(C)]
#[derive(Default)]
struct RawLinkInfo {
    link_type: u32,
    id: u32,
    program: u32,
    pad: u32,
    ifindex: u32,
    attach_type: u32,
}

// SAFETY: the pointers are filled in by the functions below from live borrows.
unsafe impl Attribute for Object {}
// SAFETY: as above.
unsafe impl Attribute for ObjectInfo {}
// SAFETY: no pointers.
unsafe impl Attribute for LinkCreate {}
// SAFETY: no pointers.
unsafe impl Attribute for LinkUpdate {}
// SAFETY: no pointers.
unsafe impl Attribute for LinkById {}
// SAFETY: no pointers.
unsafe impl Attribute for NextId {}
// SAFETY: no pointers.
unsafe impl Attribute for LinkDetach {}
// SAFETY: the pointers are filled in by the functions below from live borrows.
unsafe impl Attribute for ProgramQuery {}

/// bpf(2). A kernel that knows less of the union than `T` accepts it as long as the rest is zero.
fn bpf<T: Attribute>(command: bpf_cmd, attribute: &mut T) -> io::Result<i32> {
    // SAFETY: `attribute` is a live, exclusively borrowed part of `union bpf_attr` of the given
    // size, and by `Attribute` its pointers are good.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_int,
            std::ptr::from_mut(attribute),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

/// Runs a command that answers with a new file descriptor.
fn bpf_fd<T: Attribute>(command: bpf_cmd, attribute: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attribute)?;
    // SAFETY: the callers use commands that return a descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn path_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Opens a pinned object (`BPF_OBJ_GET`).
pub(super) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = path_string(path)?;
    let mut attribute = Object {
        path: path.as_ptr() as u64,
        fd: 0,
        flags: 0,
    };
    bpf_fd(bpf_cmd::BPF_OBJ_GET, &mut attribute)
}

/// Pins an object (`BPF_OBJ_PIN`).
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_string(path)?;
    let mut attribute = Object {
        path: path.as_ptr() as u64,
        fd: raw(object),
        flags: 0,
    };
    bpf(bpf_cmd::BPF_OBJ_PIN, &mut attribute).map(|_zero| ())
}

/// A TCX link. Dropping it closes the descriptor; the link lives on as long as its pin.
pub(super) struct TcxLink(OwnedFd);

/// The kernel's information on a TCX link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcxLinkInfo {
    /// The link's id.
    pub(super) id: u32,
    /// The id of the program it runs.
    pub(super) program: u32,
    /// Its device; 0 if the link is severed, because the device was removed or the link was
    /// detached.
    pub(super) ifindex: u32,
    /// The hook of the device; none when it is none that is known here.
    pub(super) direction: Option<Direction>,
}

impl TcxLink {
    /// Attaches a program after all others (`BPF_LINK_CREATE`, Linux 6.6 for TCX).
    pub(super) fn attach_last(
        program: BorrowedFd<'_>,
        ifindex: u32,
        direction: Direction,
    ) -> io::Result<Self> {
        let mut attribute = LinkCreate {
            program: raw(program),
            ifindex,
            attach_type: attach_type(direction),
            flags: BPF_F_AFTER,
            relative: 0,
            pad: 0,
            expected_revision: 0,
        };
        bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attribute).map(Self)
    }

    /// Opens a pinned link.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        open_pin(path).map(Self)
    }

    /// Opens a link by its id.
    pub(super) fn by_id(id: u32) -> io::Result<Self> {
        bpf_fd(bpf_cmd::BPF_LINK_GET_FD_BY_ID, &mut LinkById { id }).map(Self)
    }

    /// Pins the link.
    pub(super) fn pin(&self, path: &Path) -> io::Result<()> {
        pin(self.0.as_fd(), path)
    }

    /// Puts another program into the place of the link's, atomically. `ENOLINK` when the link is
    /// severed.
    pub(super) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let mut attribute = LinkUpdate {
            link: raw(self.0.as_fd()),
            program: raw(program),
            flags: 0,
            old_program: 0,
        };
        bpf(bpf_cmd::BPF_LINK_UPDATE, &mut attribute).map(|_zero| ())
    }

    /// Detaches the program, even if another process holds the link. Removing the pin alone
    /// detaches it later, after an RCU grace period.
    pub(super) fn detach(&self) -> io::Result<()> {
        let mut attribute = LinkDetach {
            link: raw(self.0.as_fd()),
        };
        bpf(bpf_cmd::BPF_LINK_DETACH, &mut attribute).map(|_zero| ())
    }

    /// The kernel's information; `None` when this is no TCX link.
    pub(super) fn info(&self) -> io::Result<Option<TcxLinkInfo>> {
        let mut info = RawLinkInfo::default();
        let mut attribute = ObjectInfo {
            fd: raw(self.0.as_fd()),
            length: u32::try_from(size_of::<RawLinkInfo>()).map_err(io::Error::other)?,
            info: std::ptr::from_mut(&mut info) as u64,
        };
        bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attribute)?;
        if info.link_type != bpf_link_type::BPF_LINK_TYPE_TCX as u32 {
            return Ok(None);
        }
        Ok(Some(TcxLinkInfo {
            id: info.id,
            program: info.program,
            ifindex: info.ifindex,
            direction: Direction::ALL
                .into_iter()
                .find(|direction| info.attach_type == attach_type(*direction)),
        }))
    }
}

/// One program on a TCX hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcxProgram {
    /// The program's id.
    pub(super) program: u32,
    /// The link's id; 0 for a program attached without one.
    pub(super) link: u32,
}

/// The programs on a device's TCX hook in this network namespace, in the order they run, and the hook's
/// revision (`BPF_PROG_QUERY`). `ENODEV` without such a device, `EINVAL` on a kernel without TCX.
pub(super) fn query_tcx(ifindex: u32, direction: Direction) -> io::Result<(Vec<TcxProgram>, u64)> {
    let mut programs = [0_u32; MPROG_MAX];
    let mut links = [0_u32; MPROG_MAX];
    let mut attribute = ProgramQuery {
        programs: programs.as_mut_ptr() as u64,
        count: u32::try_from(MPROG_MAX).map_err(io::Error::other)?,
        links: links.as_mut_ptr() as u64,
        ..ProgramQuery::of(ifindex, direction)
    };
    if !attribute.ask()? {
        return Ok((Vec::new(), 0));
    }
    let count = usize::try_from(attribute.count).map_err(io::Error::other)?;
    let programs = std::iter::zip(programs, links)
        .take(count)
        .map(|(program, link)| TcxProgram { program, link })
        .collect();
    Ok((programs, attribute.revision))
}

/// The revision of a device's TCX hook, another one after each change of its programs; 0 where nothing
/// is attached. Errors as [`query_tcx`].
pub(super) fn tcx_revision(ifindex: u32, direction: Direction) -> io::Result<u64> {
    let mut attribute = ProgramQuery::of(ifindex, direction);
    Ok(if attribute.ask()? {
        attribute.revision
    } else {
        0
    })
}

impl ProgramQuery {
    /// The question for a hook's revision alone.
    fn of(ifindex: u32, direction: Direction) -> Self {
        Self {
            ifindex,
            attach_type: attach_type(direction),
            query_flags: 0,
            attach_flags: 0,
            programs: 0,
            count: 0,
            pad: 0,
            program_attach_flags: 0,
            links: 0,
            link_attach_flags: 0,
            revision: 0,
        }
    }

    /// Asks; false if nothing was ever attached there.
    fn ask(&mut self) -> io::Result<bool> {
        match bpf(bpf_cmd::BPF_PROG_QUERY, self) {
            Ok(_zero) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The highest id of a link above `known`, of whatever kind and namespace; `known` where there is
/// none, or where the kernel does not let it be read.
pub(super) fn newest_link(known: u32) -> u32 {
    let mut newest = known;
    loop {
        let mut id = NextId {
            start: newest,
            next: 0,
            flags: 0,
        };
        match bpf(bpf_cmd::BPF_LINK_GET_NEXT_ID, &mut id) {
            Ok(_zero) if id.next > newest => newest = id.next,
            _last => return newest,
        }
    }
}

/// Raises the limit of open files to the most that is allowed; what it is then.
pub(super) fn lift_file_limit() -> nix::Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(most)
}

/// Lifts the limit on locked memory, by which kernels before 5.11 account maps and programs.
pub(super) fn lift_memory_limit() -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is a live `rlimit` that the call only reads.
    match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } {
        0 => Ok(()),
        _error => Err(io::Error::last_os_error()),
    }
}

fn attach_type(direction: Direction) -> u32 {
    match direction {
        Direction::Ingress => bpf_attach_type::BPF_TCX_INGRESS as u32,
        Direction::Egress => bpf_attach_type::BPF_TCX_EGRESS as u32,
    }
}
