//! A server that sends back what it gets, over TCP and UDP.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::socket::{Shutdown, shutdown};

use crate::fabric::Place;

/// How often a server looks whether it is to stop.
const TICK: Duration = Duration::from_millis(50);
/// A connection on which nothing comes for so long is dropped.
const IDLE: Duration = Duration::from_secs(10);

/// An echo server on one address. Dropping it stops it.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Echo {
    /// Serves on an address of a namespace, on a free port that is the same for TCP and UDP.
    ///
    /// # Errors
    /// When the namespace does not have the address.
    pub fn start(at: Place) -> Result<Self> {
        let (listener, socket) = at
            .netns
            .enter(|| {
                let listener = TcpListener::bind((at.address, 0))?;
                let socket = UdpSocket::bind(listener.local_addr()?)?;
                socket.set_read_timeout(Some(TICK))?;
                Ok((Arc::new(listener), socket))
            })
            .with_context(|| format!("cannot serve on {} of {}", at.address, at.netns.name()))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let tcp = {
            let (listener, stop) = (Arc::clone(&listener), Arc::clone(&stop));
            thread::spawn(move || serve_tcp(&listener, &stop))
        };
        let udp = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || serve_udp(&socket, &stop))
        };
        Ok(Self {
            address,
            listener,
            stop,
            threads: vec![tcp, udp],
        })
    }

    /// Where it serves.
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

fn serve_tcp(listener: &TcpListener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            return;
        };
        thread::spawn(move || echo(stream));
    }
}

fn echo(mut stream: TcpStream) {
    let _kept = stream.set_read_timeout(Some(IDLE));
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

fn serve_udp(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            // A reply that cannot be sent is missed by who waits for it.
            let _missed = socket.send_to(&buffer[..length], from);
        }
    }
}
