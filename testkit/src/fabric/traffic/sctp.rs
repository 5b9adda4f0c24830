//! SCTP between real sockets, one association to a socket.
//!
//! The kernels of many machines have no SCTP, so the tests that need it are in the program `guest`:
//! the kernel matrix brings the module.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::socket::{Backlog, SockaddrStorage, bind, connect, listen, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::exchange::REPLY_TIMEOUT;
use crate::fabric::Place;

/// Associations that may wait to be taken.
const WAITING: i32 = 16;

/// A socket for one association (RFC 6458 section 4), bound to one address and a port: with more
/// addresses than one, the packets themselves would tell them to the other side.
fn bound(at: SocketAddr) -> Result<OwnedFd> {
    let family = match at {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket(2) takes numbers alone.
    let fd = Errno::result(unsafe { libc::socket(family, kind, libc::IPPROTO_SCTP) });
    let fd = fd.context("this kernel has no SCTP; `cargo xtask test vm` brings some that have")?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(at))
        .with_context(|| format!("SCTP on {at}"))?;
    Ok(socket)
}

fn time(duration: Duration) -> Result<TimeVal> {
    Ok(TimeVal::milliseconds(i64::try_from(duration.as_millis())?))
}

/// A socket that takes associations; it waits for one no longer than this. The standard library's
/// type does for SCTP what it does for TCP.
pub(super) fn listen_at(at: Place, port: u16, patience: Duration) -> Result<TcpListener> {
    at.netns.enter(|| {
        let socket = bound(SocketAddr::new(at.address, port))?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &time(patience)?)?;
        listen(&socket, Backlog::new(WAITING)?).context("SCTP: listen")?;
        Ok(TcpListener::from(socket))
    })
}

/// Opens an association from a port; opening, reading and writing are bounded in time.
pub(super) fn associate(from: Place, port: u16, to: SocketAddr) -> Result<TcpStream> {
    let open = || {
        let socket = bound(SocketAddr::new(from.address, port))?;
        setsockopt(&socket, sockopt::SendTimeout, &time(REPLY_TIMEOUT)?)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &time(REPLY_TIMEOUT)?)?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        Ok(TcpStream::from(socket))
    };
    let opened = from.netns.enter(open);
    opened.with_context(|| format!("SCTP from {} port {port} to {to}", from.address))
}
