//! An echo server, over TCP and UDP or over SCTP. It can report the client's address and send data
//! of its own accord.

use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::socket::{Shutdown, shutdown};

use super::sctp;
use crate::fabric::Place;

/// Period at which a server checks if it must stop.
const TICK: Duration = Duration::from_millis(10);
/// Attempts to find a port that is free for both TCP and UDP.
const PORT_TRIES: u32 = 20;
/// A connection on which nothing comes for so long is dropped.
const IDLE: Duration = Duration::from_mins(2);
/// Stack of a connection's thread, in bytes: a test may have thousands.
const STACK: usize = 128 * 1024;

/// An echo server on one address. Dropping it stops it.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    clients: Option<Arc<Clients>>,
}

/// Data that a server sends of its own accord.
pub(super) const UNASKED: &[u8] = b"unasked";

/// Clients that a server has seen.
#[derive(Debug, Default)]
struct Clients(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    seen: HashSet<SocketAddr>,
    open: HashMap<SocketAddr, TcpStream>,
}

impl Clients {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Behaviour of a server, apart from its echo.
#[derive(Clone, Debug)]
struct Manner {
    tells: bool,
    clients: Option<Arc<Clients>>,
}

impl Echo {
    /// Serves on an address of a namespace, on a free port that is the same for TCP and UDP.
    ///
    /// # Errors
    /// When the namespace does not have the address.
    pub fn start(at: Place) -> Result<Self> {
        Self::serve(at, 0, false, None)
    }

    /// Serves on a port of an address, or on a free one for port 0. Each connection begins with a
    /// line that has the client's address and port as the server sees them. Each datagram comes
    /// back with such a line before it.
    ///
    /// # Errors
    /// When the namespace does not have the address, or the port is taken.
    pub fn telling(at: Place, port: u16) -> Result<Self> {
        Self::serve(at, port, true, None)
    }

    /// As [`Self::telling`], but it also remembers its clients and keeps their connections, so that
    /// it can send first.
    ///
    /// # Errors
    /// As [`Self::telling`].
    pub fn speaking(at: Place, port: u16) -> Result<Self> {
        Self::serve(at, port, true, Some(Arc::default()))
    }

    /// As [`Self::telling`], over SCTP alone.
    ///
    /// # Errors
    /// As [`Self::telling`]; when the kernel has no SCTP.
    pub fn telling_sctp(at: Place, port: u16) -> Result<Self> {
        let listener = Arc::new(sctp::listen_at(at, port, TICK)?);
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (listener, stop) = (Arc::clone(&listener), Arc::clone(&stop));
            let manner = Manner {
                tells: true,
                clients: None,
            };
            thread::spawn(move || serve_streams(&listener, &manner, &stop))
        };
        Ok(Self {
            address,
            listener,
            stop,
            threads: vec![thread],
            clients: None,
        })
    }

    fn serve(at: Place, port: u16, tells: bool, clients: Option<Arc<Clients>>) -> Result<Self> {
        let (listener, socket) = at
            .netns
            .enter(|| {
                let (listener, socket) = bind_both(at.address, port)?;
                socket.set_read_timeout(Some(TICK))?;
                Ok((Arc::new(listener), socket))
            })
            .with_context(|| format!("cannot serve on {} of {}", at.address, at.netns.name()))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let manner = Manner {
            tells,
            clients: clients.clone(),
        };
        let tcp = {
            let (listener, stop) = (Arc::clone(&listener), Arc::clone(&stop));
            let manner = manner.clone();
            thread::spawn(move || serve_streams(&listener, &manner, &stop))
        };
        let udp = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || serve_udp(&socket, &manner, &stop))
        };
        Ok(Self {
            address,
            listener,
            stop,
            threads: vec![tcp, udp],
            clients,
        })
    }

    /// Forgets a client, by the address that the server sees, and returns true if it has sent over
    /// TCP or UDP since it was last forgotten.
    ///
    /// # Errors
    /// When the server does not remember its clients.
    pub fn forget(&self, client: SocketAddr) -> Result<bool> {
        Ok(self.clients()?.known().seen.remove(&client))
    }

    /// Sends data of its own accord on a client's connection: [`super::Session::hear`] is its other
    /// end.
    ///
    /// # Errors
    /// When the server has no such client, or the connection is gone.
    pub fn speak(&self, client: SocketAddr) -> Result<()> {
        let known = self.clients()?.known();
        let mut stream = known
            .open
            .get(&client)
            .with_context(|| format!("{} has no connection of {client}", self.address))?;
        stream.write_all(UNASKED)?;
        Ok(())
    }

    fn clients(&self) -> Result<&Clients> {
        self.clients
            .as_deref()
            .context("this server does not remember its clients")
    }

    /// Address of the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Ends an accept(2) that waits; one that does not wait sees the flag.
        let _not_waiting = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

fn serve_streams(listener: &TcpListener, manner: &Manner, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            // A shutdown(2) does not end SCTP's, which waits for a limited time only.
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(_ended) => return,
        };
        if let (Some(clients), Ok(stream)) = (&manner.clients, stream.try_clone()) {
            let mut known = clients.known();
            known.seen.insert(peer);
            known.open.insert(peer, stream);
        }
        let manner = manner.clone();
        let connection = thread::Builder::new().stack_size(STACK);
        // A client whose thread cannot be made sees its connection end.
        let _ended = connection.spawn(move || {
            echo(stream, manner.tells.then_some(peer));
            if let Some(clients) = &manner.clients {
                clients.known().open.remove(&peer);
            }
        });
    }
}

/// The line with a client's address and port.
fn line(peer: SocketAddr) -> Vec<u8> {
    format!("{peer}\n").into_bytes()
}

fn echo(mut stream: TcpStream, tell: Option<SocketAddr>) {
    let _kept = stream.set_read_timeout(Some(IDLE));
    if let Some(peer) = tell
        && stream.write_all(&line(peer)).is_err()
    {
        return;
    }
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => {
                if stream.write_all(&buffer[..length]).is_err() {
                    return;
                }
            }
        }
    }
}

fn serve_udp(socket: &UdpSocket, manner: &Manner, stop: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if let Some(clients) = &manner.clients {
                clients.known().seen.insert(from);
            }
            let mut reply = if manner.tells { line(from) } else { Vec::new() };
            reply.extend_from_slice(&buffer[..length]);
            // The client misses a reply that cannot be sent.
            let _missed = socket.send_to(&reply, from);
        }
    }
}

/// A TCP and a UDP socket at one port; 0 stands for one that is free for both. The kernel chooses a
/// port that is free for TCP, which a client's UDP socket may have.
fn bind_both(address: IpAddr, port: u16) -> Result<(TcpListener, UdpSocket)> {
    let mut tries = 0;
    loop {
        let listener = TcpListener::bind((address, port))?;
        match UdpSocket::bind(listener.local_addr()?) {
            Err(error)
                if port == 0 && error.kind() == ErrorKind::AddrInUse && tries < PORT_TRIES =>
            {
                tries += 1;
            }
            socket => return Ok((listener, socket?)),
        }
    }
}
