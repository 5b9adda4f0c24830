//! Kind of file that a path to a network namespace leads to.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use api::{ApiError, ErrorCode};
use loader::intent::Endpoint;
use loader::netlink::netns_at;

/// Kind of file that a path leads to.
#[derive(Debug)]
pub(crate) enum Netns {
    /// A network namespace other than the host's.
    Pod,
    /// The host's own network namespace.
    Host,
    /// A file that is no network namespace; a bind mount leaves one when it is taken off.
    Other,
    /// Nothing.
    Absent,
    /// A file that could not be inspected.
    Unknown(io::Error),
}

impl Netns {
    /// Inspects a path.
    pub(crate) fn at(path: &Path) -> Self {
        match look(path) {
            Ok(netns) => netns,
            Err(error) if error.kind() == ErrorKind::NotFound => Self::Absent,
            Err(error) => Self::Unknown(error),
        }
    }

    /// True if the namespace is certainly gone.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Other | Self::Absent => true,
            Self::Pod | Self::Host | Self::Unknown(_) => false,
        }
    }
}

/// Checks that the path of an endpoint leads to where its interface is.
pub(crate) fn check_same(endpoint: &Endpoint) -> Result<(), ApiError> {
    if !is_another(endpoint) {
        return Ok(());
    }
    let message = format!(
        "{} has an endpoint in another network namespace, which was at {} before: delete it first",
        endpoint.owner,
        endpoint.netns.display()
    );
    Err(ApiError::new(ErrorCode::OwnerConflict, message).at("netns"))
}

/// True if the path of an endpoint leads to another namespace than the one that it was added with.
pub(crate) fn is_another(endpoint: &Endpoint) -> bool {
    let is_pod = || matches!(Netns::at(&endpoint.netns), Netns::Pod);
    let now = || netns_at(&endpoint.netns).ok();
    let was = endpoint.about.namespace.filter(|_| is_pod());
    was.is_some_and(|was| now().is_some_and(|now| now.is_other_than(was)))
}

/// True if the namespace that an endpoint was added with is certainly not at its path any more.
pub(crate) fn is_gone(endpoint: &Endpoint) -> bool {
    Netns::at(&endpoint.netns).is_gone() || is_another(endpoint)
}

fn look(path: &Path) -> io::Result<Netns> {
    // Opening anything but a regular file may block (a FIFO) or act (a device).
    if !fs::metadata(path)?.is_file() {
        return Ok(Netns::Other);
    }
    let file = File::open(path)?;
    // SAFETY: the descriptor is open, and the request (ioctl_ns(2)) takes no argument; on a file
    // of another kind it fails with ENOTTY.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), libc::NS_GET_NSTYPE) };
    if kind != libc::CLONE_NEWNET {
        return Ok(Netns::Other);
    }
    let (there, here) = (file.metadata()?, fs::metadata("/proc/thread-self/ns/net")?);
    if (there.dev(), there.ino()) == (here.dev(), here.ino()) {
        return Ok(Netns::Host);
    }
    Ok(Netns::Pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_namespaces_from_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        File::create(&file).unwrap();
        assert!(matches!(Netns::at(&file), Netns::Other));
        assert!(matches!(Netns::at(folder.path()), Netns::Other));
        assert!(matches!(
            Netns::at(&folder.path().join("none")),
            Netns::Absent
        ));
        assert!(matches!(
            Netns::at(Path::new("/proc/self/ns/net")),
            Netns::Host
        ));
        assert!(matches!(
            Netns::at(Path::new("/proc/self/ns/mnt")),
            Netns::Other
        ));
    }
}
