//! One request and its reply, by each protocol.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipam::Family;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::fabric::{Place, command};

use super::Echo;

/// The time that an exchange may take. A local one takes a millisecond.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Pause between two checks if a port is free again.
const PAUSE: Duration = Duration::from_millis(10);

/// Protocol of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP: connect, some bytes in both directions, close.
    Tcp,
    /// UDP: one datagram in each direction.
    Udp,
    /// ICMP or `ICMPv6` echo.
    Icmp,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Icmp];

    /// Its number in the IP header of a family (IANA, "Protocol Numbers").
    #[must_use]
    pub fn number(self, family: Family) -> u8 {
        match (self, family) {
            (Self::Tcp, _) => 6,
            (Self::Udp, _) => 17,
            (Self::Icmp, Family::V4) => 1,
            (Self::Icmp, Family::V6) => 58,
        }
    }

    /// Carries out one exchange between two places.
    ///
    /// # Errors
    /// When no right reply comes in time.
    pub fn exchange(self, from: Place, to: Place) -> Result<()> {
        match self {
            Self::Tcp => tcp(from, Echo::start(to)?.address()),
            Self::Udp => udp(from, Echo::start(to)?.address(), b"towpath"),
            Self::Icmp => ping(from, to.address, &[]).map(drop),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

/// Connects from an address; connecting, reading and writing have deadlines.
pub(super) fn connect_from(from: Place, to: SocketAddr) -> Result<TcpStream> {
    connect_from_port(from, 0, to)
}

/// Connects from a port, which may have been used before; connecting, reading and writing have
/// deadlines.
///
/// # Errors
/// When there is no connection in time.
pub fn connect_from_port(from: Place, port: u16, to: SocketAddr) -> Result<TcpStream> {
    from.netns
        .enter(|| {
            let family = match to {
                SocketAddr::V4(_) => AddressFamily::Inet,
                SocketAddr::V6(_) => AddressFamily::Inet6,
            };
            let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            let patience = TimeVal::seconds(i64::try_from(REPLY_TIMEOUT.as_secs())?);
            setsockopt(&socket, sockopt::SendTimeout, &patience)?;
            setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
            setsockopt(&socket, sockopt::ReuseAddr, &true)?;
            let source = SocketAddr::new(from.address, port);
            bind(socket.as_raw_fd(), &SockaddrStorage::from(source))?;
            let begun = Instant::now();
            loop {
                match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
                    // The port's last connection is still open: its FIN waits for the answer.
                    Err(Errno::EADDRNOTAVAIL) if port != 0 && begun.elapsed() < REPLY_TIMEOUT => {
                        thread::sleep(PAUSE);
                    }
                    // The next call waits for the connection that this one began.
                    Err(Errno::EINTR) => {}
                    connected => {
                        connected?;
                        return Ok(TcpStream::from(socket));
                    }
                }
            }
        })
        .with_context(|| format!("tcp from {} to {to}: connect", from.address))
}

/// One TCP connection with a few bytes in each direction.
///
/// # Errors
/// When it cannot be opened, or other bytes come back.
pub fn tcp(from: Place, to: SocketAddr) -> Result<()> {
    tcp_bulk(from, to, 7)
}

/// One TCP connection with a number of bytes in each direction. When it returns, the server has
/// closed it too. A later change of addresses therefore affects no packet of it.
///
/// # Errors
/// As [`tcp`].
pub fn tcp_bulk(from: Place, to: SocketAddr, bytes: usize) -> Result<()> {
    let stream = connect_from(from, to)?;
    let exchanged = there_and_back(stream.try_clone()?, &stream, bytes);
    exchanged.and_then(|()| close(&stream)).with_context(|| {
        format!(
            "tcp from {} to {to}: {bytes} bytes there and back",
            from.address
        )
    })
}

/// Closes a connection, and waits until the other side has closed it.
fn close(mut stream: &TcpStream) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let more = stream.read(&mut [0]).context("the server does not close")?;
    ensure!(more == 0, "more bytes came back");
    Ok(())
}

/// Sends a number of bytes and receives them at the same time.
pub(super) fn there_and_back(
    mut writer: TcpStream,
    mut reader: impl Read,
    bytes: usize,
) -> Result<()> {
    let data: Vec<u8> = (0_u8..=250).cycle().take(bytes).collect();
    let mut back = vec![0; bytes];
    thread::scope(|scope| {
        let written = scope.spawn(|| writer.write_all(&data));
        reader.read_exact(&mut back)?;
        match written.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    ensure!(back == data, "other bytes came back");
    Ok(())
}

/// One UDP datagram and its reply.
///
/// # Errors
/// When it cannot be sent, or other bytes come back.
pub fn udp(from: Place, to: SocketAddr, data: &[u8]) -> Result<()> {
    let what = || format!("udp from {} to {to}, {} bytes", from.address, data.len());
    let socket = from
        .netns
        .enter(|| Ok(UdpSocket::bind((from.address, 0))?))
        .with_context(what)?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    socket.connect(to).with_context(what)?;
    socket.send(data).with_context(what)?;
    let mut back = vec![0; 64 * 1024];
    let length = uninterrupted(|| socket.recv(&mut back)).with_context(what)?;
    if back.get(..length) != Some(data) {
        bail!("{}: other bytes came back", what());
    }
    Ok(())
}

/// Repeats a call on a socket with a deadline while signals interrupt it: the kernel does not
/// restart such a call itself (`socket(7)`, `signal(7)`).
///
/// A signal comes to a thread of tests even where none is handled: a child's end is one while the
/// thread that started the child still blocks signals (`do_notify_parent()` in kernel/signal.c).
///
/// # Errors
/// As the call.
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// One echo request by ping(8), with more options if there are any; returns ping's output.
///
/// # Errors
/// When no reply comes: ping's output.
pub fn ping(from: Place, to: IpAddr, options: &[&str]) -> Result<String> {
    let output = ping_output(from, to, options)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!(
            "no reply to a ping from {} to {to} {options:?}: {text}{errors}",
            from.address
        );
    }
    Ok(text)
}

fn ping_output(from: Place, to: IpAddr, options: &[&str]) -> Result<Output> {
    let patience = REPLY_TIMEOUT.as_secs().to_string();
    let mut ping = from.netns.command("ping");
    ping.args(["-n", "-c", "1", "-W", &patience, "-I"]);
    ping.arg(from.address.to_string())
        .args(options)
        .arg(to.to_string());
    command::output(&mut ping)
}
