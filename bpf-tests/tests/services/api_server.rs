//! As much of a Kubernetes API server as kube-proxy asks for: it lists what never changes, and lets
//! whoever watches wait.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Result;
use bpf_tests::fabric::Netns;
use nix::sys::socket::{Shutdown, shutdown};
use serde_json::Value;

/// A server on the loopback device of a namespace. Dropping it ends it, once its clients are gone.
#[derive(Debug)]
pub(crate) struct ApiServer {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// Serves objects by their paths.
    pub(crate) fn start(netns: &Netns, objects: BTreeMap<String, Value>) -> Result<Self> {
        let listener = netns.enter(|| Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?))?;
        let address = listener.local_addr()?;
        let listener = Arc::new(listener);
        let accepting = Arc::clone(&listener);
        let objects = Arc::new(objects);
        let thread = thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                let objects = Arc::clone(&objects);
                // A client that is not served well says so itself.
                thread::spawn(move || answer(stream, &objects));
            }
        });
        Ok(Self {
            address,
            listener,
            thread: Some(thread),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let _not_waiting = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Answers one request, and closes; a watch it holds until the client goes.
fn answer(mut stream: TcpStream, objects: &BTreeMap<String, Value>) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let target = request.split_whitespace().nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_watch = query.split('&').any(|field| field == "watch=true");
    let json = "Content-Type: application/json\r\n";
    let Some(object) = objects.get(path).filter(|_| request.starts_with("GET ")) else {
        write!(
            stream,
            "HTTP/1.1 404 Not Found\r\n{json}Connection: close\r\nContent-Length: 2\r\n\r\n{{}}"
        )?;
        return Ok(());
    };
    if is_watch {
        write!(
            stream,
            "HTTP/1.1 200 OK\r\n{json}Transfer-Encoding: chunked\r\n\r\n"
        )?;
        std::io::copy(&mut reader, &mut std::io::sink())?;
        return Ok(());
    }
    let body = object.to_string();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\n{json}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    Ok(())
}
