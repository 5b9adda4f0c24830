//! One agent a network namespace, whatever its folders.
//!
//! Two agents in one namespace would treat each other's endpoints as deleted. So the agent listens
//! at names of the namespace's abstract Unix sockets. The names are equal for every container of
//! the host's network, and are released with the process. Any process may take such a name. The
//! kernel identifies the listener, so a name that an unprivileged process holds is left out. There
//! are several names, and an agent takes all that are free.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt, shutdown, socket,
    sockopt::PeerCredentials,
};

use crate::state::lock::{Attempt, TICK, patiently};

/// Prefix of the names; a number follows.
const NAME: &str = "towpath-agent-";
/// Number of names.
const NAMES: usize = 8;
/// Time limit for a holder's answer.
const ANSWER: Duration = Duration::from_millis(500);
/// Longest text of a holder, in bytes.
const TEXT: u64 = 4096;
/// `CAP_NET_ADMIN` of `include/uapi/linux/capability.h`: no agent runs without it.
const NET_ADMIN: u32 = 12;

/// Held while it lives; the kernel releases it with the process, however that ends.
#[derive(Debug)]
pub(crate) struct NetnsLock {
    listeners: Vec<Arc<UnixListener>>,
    teller: Option<JoinHandle<()>>,
}

/// Holder of a name.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// An agent, by its description of itself.
    Agent(String),
    /// A process that is not trusted.
    Stranger(String),
}

impl NetnsLock {
    /// Takes the lock of the calling thread's network namespace, and describes this agent to every
    /// process that connects.
    ///
    /// # Errors
    /// When another agent has it, after waiting so long.
    pub(crate) fn take(about: &str, wait: Duration) -> Result<Self> {
        patiently(wait, || Self::attempt(about))
    }

    fn attempt(about: &str) -> Result<Attempt<Self>> {
        let mut listeners = Vec::new();
        for number in 0..NAMES {
            let name = format!("{NAME}{number}");
            match bind(&name) {
                Ok(listener) => listeners.push(Arc::new(listener)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder(&name)
                    .or_else(|_| later(&name))
                {
                    Ok(Holder::Agent(who)) => {
                        return Ok(Attempt::Busy(format!(
                            "another agent is running in this network namespace: {who}; stop it \
                             first, for two would remove each other's endpoints"
                        )));
                    }
                    Ok(Holder::Stranger(who)) => {
                        tracing::warn!(name, "no agent has the name of the agent's lock: {who}");
                    }
                    // It went just now, or does not listen.
                    Err(error) => tracing::warn!(name, "a name of the lock is taken: {error:#}"),
                },
                Err(error) => {
                    return Err(error).with_context(|| format!("listen at the socket @{name}"));
                }
            }
        }
        if listeners.is_empty() {
            tracing::error!(
                "every name of the agent's lock is taken by others: a second agent in this network \
                 namespace would not be noticed"
            );
        }
        let teller = listeners.first().map(|listener| tell(listener, about));
        let teller = teller.transpose().context("start the thread of the lock")?;
        Ok(Attempt::Taken(Self { listeners, teller }))
    }
}

impl Drop for NetnsLock {
    fn drop(&mut self) {
        for listener in &self.listeners {
            // The thread waits for a connection.
            shutdown(listener.as_raw_fd(), Shutdown::Both).ok();
        }
        if let Some(teller) = self.teller.take() {
            teller.join().ok();
        }
    }
}

fn bind(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Describes this agent to every process that connects.
fn tell(listener: &Arc<UnixListener>, about: &str) -> io::Result<JoinHandle<()>> {
    let listener = Arc::clone(listener);
    let about = format!("process {}, {about}", std::process::id());
    let work = move || {
        loop {
            match listener.accept() {
                // A caller that has gone needs no answer.
                Ok((mut stream, _)) => drop(stream.write_all(about.as_bytes())),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
                Err(_out_of_descriptors) => thread::sleep(ANSWER),
            }
        }
    };
    thread::Builder::new().name("lock".to_owned()).spawn(work)
}

/// Identifies the listener at a name.
fn holder(name: &str) -> Result<Holder> {
    let stream = connect_to(name)?;
    let peer = getsockopt(&stream, PeerCredentials).context("ask who has it")?;
    let (pid, uid) = (peer.pid(), peer.uid());
    if uid != 0 {
        return Ok(Holder::Stranger(format!("process {pid} of user {uid}")));
    }
    if !may_be_agent(pid) {
        return Ok(Holder::Stranger(format!(
            "process {pid}, without CAP_NET_ADMIN"
        )));
    }
    if is_root_elsewhere(pid) {
        return Ok(Holder::Stranger(format!(
            "process {pid}, which is root of another user namespace alone"
        )));
    }
    let stream = UnixStream::from(stream);
    let said = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(ANSWER)));
    let mut text = String::new();
    let said = said.and_then(|()| stream.take(TEXT).read_to_string(&mut text));
    // One that hangs is an agent as well.
    if said.is_err() || text.is_empty() {
        text = format!("process {pid}, which does not answer");
    }
    Ok(Holder::Agent(text))
}

/// Identifies the listener at a name after a moment: an agent that has just bound its socket does
/// not listen yet.
fn later(name: &str) -> Result<Holder> {
    thread::sleep(TICK);
    holder(name)
}

/// Connects without waiting.
fn connect_to(name: &str) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let address = UnixAddr::new_abstract(name.as_bytes())?;
    match connect(stream.as_raw_fd(), &address) {
        Ok(()) => Ok(stream),
        Err(error) => bail!("no answer at @{name}: {error}"),
    }
}

/// True if a process is known to have its capabilities in another user namespace, where they are
/// everybody's to have.
fn is_root_elsewhere(pid: i32) -> bool {
    let namespace = |of: &dyn Display| fs::read_link(format!("/proc/{of}/ns/user")).ok();
    let (its, own) = (namespace(&pid), namespace(&"self"));
    its.zip(own).is_some_and(|(its, own)| its != own)
}

/// True if a process of root may be an agent; also if it cannot be inspected.
fn may_be_agent(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_none_or(|effective| effective & (1 << NET_ADMIN) != 0)
}
