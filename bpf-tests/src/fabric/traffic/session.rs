//! Clients of a server that tells whom it sees: over TCP, UDP and SCTP, from ports of one's choice.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::echo::UNASKED;
use super::exchange::{PATIENCE, connect_from_port, there_and_back, uninterrupted};
use super::sctp;
use crate::fabric::Place;
use crate::fabric::eventually::eventually;

/// For how long a port may stay taken by a socket that is closed: a process that another test starts at that
/// moment has it until it executes its program.
const HELD: Duration = Duration::from_secs(2);

/// True if an address is in use.
fn is_in_use(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// Most links of a way that take less than the one before.
const HOPS: u32 = 3;

/// An open TCP connection, or SCTP association, whose client knows what the server sees it as.
#[derive(Debug)]
pub struct Session {
    stream: BufReader<TcpStream>,
    seen: SocketAddr,
    label: String,
}

impl Session {
    /// Connects to a server that tells, from a port or from any (0).
    ///
    /// # Errors
    /// When it cannot be opened in time.
    pub fn open(from: Place, port: u16, to: SocketAddr) -> Result<Self> {
        let label = format!("the connection from {} to {to}", from.address);
        Self::over(connect_from_port(from, port, to)?, label)
    }

    /// The same over SCTP.
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

    /// The client's address and port, as it has them itself.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn own(&self) -> Result<SocketAddr> {
        Ok(self.stream.get_ref().local_addr()?)
    }

    /// Sends a few bytes and takes them back.
    ///
    /// # Errors
    /// As [`Self::bulk`].
    pub fn exchange(&mut self) -> Result<()> {
        self.bulk(7)
    }

    /// Sends so many bytes and takes them back.
    ///
    /// # Errors
    /// When the connection is gone, or not the same bytes come back in time.
    pub fn bulk(&mut self, bytes: usize) -> Result<()> {
        there_and_back(self.stream.get_ref().try_clone()?, &mut self.stream, bytes)
            .with_context(|| format!("{}: {bytes} bytes there and back", self.label))
    }

    /// Takes what the server says unasked: [`super::Echo::speak`] is its other end.
    ///
    /// # Errors
    /// When the connection is gone, or not that comes in time.
    pub fn hear(&mut self) -> Result<()> {
        let mut said = vec![0; UNASKED.len()];
        let heard = self.stream.read_exact(&mut said);
        heard.with_context(|| format!("{}: the server speaks first", self.label))?;
        ensure!(said == UNASKED, "{}: other bytes came", self.label);
        Ok(())
    }
}

/// A UDP socket that asks a server whom it sees.
#[derive(Debug)]
pub struct Asker {
    socket: UdpSocket,
    label: String,
}

impl Asker {
    /// A socket from a port or from any (0), towards a server that tells.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn open(from: Place, port: u16, to: SocketAddr) -> Result<Self> {
        let label = format!("udp from {} port {port} to {to}", from.address);
        let open = || {
            let socket = UdpSocket::bind((from.address, port))?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(PATIENCE))?;
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

    /// Asks with a datagram of so many bytes of data, and returns the address that was seen. Asks
    /// again when the datagram was too big for the way: the kernel has learned by then.
    ///
    /// # Errors
    /// When it cannot be sent, or not the right answer comes in time.
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
