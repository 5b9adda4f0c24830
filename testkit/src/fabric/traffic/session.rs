//! Clients of a server that reports their addresses: over TCP, UDP and SCTP, from chosen ports.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::echo::UNASKED;
use super::exchange::{REPLY_TIMEOUT, connect_from_port, there_and_back, uninterrupted};
use super::sctp;
use crate::fabric::Place;
use crate::fabric::eventually::eventually;

/// The time that a closed socket may still hold a port: a process that another test starts at that
/// moment holds it until its exec.
const HELD: Duration = Duration::from_secs(2);

/// True if an address is in use.
fn is_in_use(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// Most links of a path whose MTU is smaller than the one before.
const HOPS: u32 = 3;

/// An open TCP connection, or SCTP association, with the client's address as the server sees it.
#[derive(Debug)]
pub struct Session {
    stream: BufReader<TcpStream>,
    seen: SocketAddr,
    label: String,
}

impl Session {
    /// Connects to a server that reports addresses, from a port or from any (0).
    ///
    /// # Errors
    /// When it cannot be opened in time.
    pub fn open(from: Place, port: u16, to: SocketAddr) -> Result<Self> {
        let label = format!("the connection from {} to {to}", from.address);
        Self::over(connect_from_port(from, port, to)?, label)
    }

    /// Connects over SCTP, otherwise as [`Self::open`].
    ///
    /// # Errors
    /// When it cannot be opened in time, or the kernel has no SCTP.
    pub fn open_sctp(from: Place, port: u16, to: SocketAddr) -> Result<Self> {
        let label = format!("the association from {} to {to}", from.address);
        Self::over(sctp::associate(from, port, to)?, label)
    }

    fn over(stream: TcpStream, label: String) -> Result<Self> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).with_context(|| label.clone())?;
        let seen = line.trim().parse().with_context(|| label.clone())?;
        Ok(Self {
            stream,
            seen,
            label,
        })
    }

    /// The client's address and port, as the server sees them.
    #[must_use]
    pub fn seen(&self) -> SocketAddr {
        self.seen
    }

    /// The client's own address and port.
    ///
    /// # Errors
    /// When the kernel does not report them.
    pub fn own(&self) -> Result<SocketAddr> {
        Ok(self.stream.get_ref().local_addr()?)
    }

    /// Sends a few bytes and receives them back.
    ///
    /// # Errors
    /// As [`Self::bulk`].
    pub fn exchange(&mut self) -> Result<()> {
        self.bulk(7)
    }

    /// Sends a number of bytes and receives them back.
    ///
    /// # Errors
    /// When the connection is gone, or other bytes come back, or none in time.
    pub fn bulk(&mut self, bytes: usize) -> Result<()> {
        there_and_back(self.stream.get_ref().try_clone()?, &mut self.stream, bytes)
            .with_context(|| format!("{}: {bytes} bytes there and back", self.label))
    }

    /// Receives the server's own data: [`super::Echo::speak`] is its other end.
    ///
    /// # Errors
    /// When the connection is gone, or the data does not come in time.
    pub fn hear(&mut self) -> Result<()> {
        let mut said = vec![0; UNASKED.len()];
        let heard = self.stream.read_exact(&mut said);
        heard.with_context(|| format!("{}: the server speaks first", self.label))?;
        ensure!(said == UNASKED, "{}: other bytes came", self.label);
        Ok(())
    }
}

/// A UDP socket that requests its own address from a server.
#[derive(Debug)]
pub struct Asker {
    socket: UdpSocket,
    label: String,
}

impl Asker {
    /// A socket from a port or from any (0), towards a server that reports addresses.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn open(from: Place, port: u16, to: SocketAddr) -> Result<Self> {
        let label = format!("udp from {} port {port} to {to}", from.address);
        let open = || {
            let socket = UdpSocket::bind((from.address, port))?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
            Ok(socket)
        };
        let look = || match from.netns.enter(open) {
            Err(error) if is_in_use(&error) => Err(error),
            opened => Ok(opened),
        };
        let (opened, _) = eventually(HELD, &label, look)?;
        let socket = opened.with_context(|| label.clone())?;
        Ok(Self { socket, label })
    }

    /// Sends a datagram with a number of bytes, and returns the address that the server saw. It
    /// repeats a datagram that was too big for the path, whose MTU the kernel then has learned.
    ///
    /// # Errors
    /// When it cannot be sent, or the right answer does not come in time.
    pub fn ask(&self, bytes: usize) -> Result<SocketAddr> {
        let data: Vec<u8> = (0_u8..=250).cycle().take(bytes).collect();
        let mut answer = vec![0; 64 * 1024];
        let mut ask = || {
            let mut left = HOPS;
            let length = loop {
                match self
                    .socket
                    .send(&data)
                    .and_then(|_| uninterrupted(|| self.socket.recv(&mut answer)))
                {
                    Err(error) if left > 0 && error.raw_os_error() == Some(libc::EMSGSIZE) => {
                        left -= 1;
                    }
                    other => break other?,
                }
            };
            answer.truncate(length);
            let end = answer.iter().position(|byte| *byte == b'\n');
            let (line, back) = answer.split_at(end.context("a line that tells")? + 1);
            ensure!(back == data, "other bytes came back");
            Ok(std::str::from_utf8(line)?.trim().parse()?)
        };
        ask().with_context(|| format!("{}, {bytes} bytes", self.label))
    }

    /// The socket itself.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }
}
