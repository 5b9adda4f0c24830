//! A web server for curl(1): it tells whom it sees, gives any number of bytes, counts what it gets.

use std::io::{BufRead as _, BufReader, Read as _, Write as _, copy, repeat};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use nix::sys::socket::{Shutdown, shutdown};

use crate::fabric::Place;

/// A web server on one address. Dropping it stops it.
#[derive(Debug)]
pub struct Web {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Web {
    /// Serves on a free port of an address: `GET /` is answered with the client's address and
    /// port, `GET /N` with N bytes, `POST` with the number of bytes that came.
    ///
    /// # Errors
    /// When the namespace does not have the address.
    pub fn start(at: Place) -> Result<Self> {
        let listener = at
            .netns
            .enter(|| Ok(TcpListener::bind((at.address, 0))?))
            .with_context(|| format!("cannot serve on {}", at.address))?;
        let listener = Arc::new(listener);
        let address = listener.local_addr()?;
        let thread = {
            let listener = Arc::clone(&listener);
            thread::spawn(move || {
                while let Ok((stream, peer)) = listener.accept() {
                    // A client that is not served well says so itself.
                    thread::spawn(move || serve(stream, peer));
                }
            })
        };
        Ok(Self {
            address,
            listener,
            thread: Some(thread),
        })
    }

    /// The URL of a path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _not_waiting = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, peer: SocketAddr) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    let head = |length| {
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")
    };
    let path = request.split_whitespace().nth(1).unwrap_or_default();
    if let Ok(bytes) = path.trim_start_matches('/').parse::<u64>() {
        stream.write_all(head(bytes).as_bytes())?;
        copy(&mut repeat(7).take(bytes), &mut stream)?;
        return Ok(());
    }
    let text = if request.starts_with("POST") {
        copy(&mut reader.take(length), &mut std::io::sink())?.to_string()
    } else {
        peer.to_string()
    };
    stream.write_all(format!("{}{text}", head(text.len() as u64)).as_bytes())?;
    Ok(())
}
