//! Sockets that stay open without a descriptor, so that a test may have more of them than a process
//! may have files.

use std::io::IoSlice;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::Result;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// Files that a message may have, somewhat below `SCM_MAX_FD` of `include/net/scm.h`.
const MOST: usize = 200;

/// Sockets in flight between two others (unix(7), `SCM_RIGHTS`). Dropping it closes them. With
/// `CAP_SYS_ADMIN` there may be any number of them (`too_many_unix_fds` in `net/core/scm.c`).
pub(crate) struct Parked {
    sender: UnixStream,
    /// Its queue has the sockets.
    _receiver: UnixStream,
}

impl Parked {
    pub(crate) fn new() -> Result<Self> {
        let (sender, receiver) = UnixStream::pair()?;
        // A full queue is an error instead of a test that waits for ever.
        sender.set_nonblocking(true)?;
        Ok(Self {
            sender,
            _receiver: receiver,
        })
    }

    /// Parks sockets.
    pub(crate) fn add(&self, sockets: &[TcpStream]) -> Result<()> {
        for sockets in sockets.chunks(MOST) {
            let files: Vec<RawFd> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
            let rights = [ControlMessage::ScmRights(&files)];
            let byte = [IoSlice::new(&[0])];
            let flags = MsgFlags::empty();
            sendmsg::<()>(self.sender.as_raw_fd(), &byte, &rights, flags, None)?;
        }
        Ok(())
    }
}
