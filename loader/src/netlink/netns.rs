//! Another network namespace, entered for a moment.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, bail};
use api::ids::{MacAddr, NetnsId};
use nix::ifaddrs::getifaddrs;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Where runtimes mount the namespaces of pods, as ip-netns(8) does.
const NAMESPACES: &str = "/run/netns";

/// A network namespace other than the calling thread's.
pub(super) struct NetNs {
    path: PathBuf,
    file: File,
}

impl NetNs {
    /// Opens the namespace of a path.
    ///
    /// # Errors
    /// When there is none, or when it is the caller's own: a pod on the host's network is none of
    /// ours, and its routes would be the node's.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        // The open does not block: a path of a FIFO gives an error and does not stop our thread.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .with_context(|| format!("open the netns {}", path.display()))?;
        let theirs = file.metadata().context("look at the netns")?;
        let own = fs::metadata("/proc/thread-self/ns/net").context("look at our netns")?;
        if (theirs.dev(), theirs.ino()) == (own.dev(), own.ino()) {
            bail!(
                "netns {} is the host's own: only a pod's own network namespace is allowed",
                path.display()
            );
        }
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// The open namespace.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The id of the namespace.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn id(&self) -> io::Result<NetnsId> {
        identify(&self.file)
    }

    /// Runs a function inside the namespace. The function must not block, since the thread belongs
    /// to the runtime.
    pub(super) fn run<T>(&self, work: impl FnOnce() -> T) -> anyhow::Result<T> {
        let inside = Inside::enter(&self.file).with_context(|| {
            format!(
                "{} is no network namespace that can be entered",
                self.path.display()
            )
        })?;
        let done = work();
        drop(inside);
        Ok(done)
    }
}

/// Guard that moves the calling thread to another network namespace. A new thread for each visit
/// would cost more than most visits: it has to be woken on another CPU, and to wake its caller.
struct Inside {
    own: File,
}

impl Inside {
    fn enter(file: &File) -> io::Result<Self> {
        // By the thread: `/proc/self` is the process's first one.
        let own = File::open("/proc/thread-self/ns/net")?;
        setns(file, CloneFlags::CLONE_NEWNET)?;
        Ok(Self { own })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // It would do the node's work in the pod from now on.
        if setns(&self.own, CloneFlags::CLONE_NEWNET).is_err() {
            process::abort();
        }
    }
}

/// The id of the network namespace to which a path leads.
///
/// # Errors
/// If the path does not exist or cannot be read.
pub fn netns_at(path: &Path) -> io::Result<NetnsId> {
    identify(&File::open(path)?)
}

/// Mount points of pods' network namespaces, by the MACs of the devices in them. Unreadable ones
/// are left out.
#[must_use]
pub fn namespaces_by_mac() -> BTreeMap<MacAddr, PathBuf> {
    let mut found = BTreeMap::new();
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let macs = NetNs::open(&path).and_then(|netns| netns.run(macs));
        for mac in macs.into_iter().flatten() {
            found.insert(mac, path.clone());
        }
    }
    found
}

/// The MACs of the devices in the calling thread's namespace.
fn macs() -> Vec<MacAddr> {
    let addresses = getifaddrs().into_iter().flatten();
    let macs = addresses.filter_map(|one| one.address?.as_link_addr()?.addr());
    macs.map(MacAddr).collect()
}

fn identify(file: &File) -> io::Result<NetnsId> {
    let inode = file.metadata()?.ino();
    let socket = || -> io::Result<OwnedFd> {
        let _inside = Inside::enter(file)?;
        let kind = (SockType::Datagram, SockFlag::SOCK_CLOEXEC);
        Ok(socket(AddressFamily::Unix, kind.0, kind.1, None)?)
    };
    let cookie = socket().and_then(|socket| cookie(&socket));
    Ok(NetnsId {
        inode,
        // Before Linux 5.14 there is none.
        cookie: cookie.ok(),
    })
}

/// The cookie of a socket's namespace.
fn cookie(socket: &OwnedFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of_val(&cookie)).map_err(io::Error::other)?;
    // SAFETY: the socket is open, and the kernel writes at most `length` bytes, which `cookie` has.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if done == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}
