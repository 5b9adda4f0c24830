//! A stream of numbered UDP packets, which shows each packet that was sent and did not arrive.

use std::fmt;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};

use crate::fabric::Place;
use crate::fabric::eventually::{check, eventually};

/// The sender's tick.
const TICK: Duration = Duration::from_millis(1);
/// Most packets in a tick: a sender that was delayed must not overrun a device's backlog
/// (`net.core.netdev_max_backlog`, 1000).
const BURST: u64 = 64;
/// The time that the last packets may take.
const TAIL: Duration = Duration::from_secs(2);
/// The receiver's buffer: some seconds of a stream, as a busy machine may delay the receiver.
const BUFFER: usize = 32 * 1024 * 1024;

/// A running stream in one direction.
#[derive(Debug)]
pub struct Stream {
    label: String,
    progress: Arc<Progress>,
    sender: JoinHandle<Sent>,
    receiver: JoinHandle<Seen>,
}

/// Progress of a stream.
#[derive(Debug, Default)]
struct Progress {
    /// True if the stream must end.
    stop: AtomicBool,
    /// Packets that were handed to the socket, or are being handed to it.
    sent: AtomicU64,
    /// True if no more packets will be sent.
    is_over: AtomicBool,
    /// Number of packets that have arrived, each counted once.
    arrived: AtomicU64,
}

#[derive(Debug)]
struct Sent {
    numbers: u64,
    refused: Option<String>,
    time: Duration,
}

#[derive(Debug, Default)]
struct Seen {
    times: Vec<u8>,
}

/// The outcome of a stream.
#[derive(Clone, Debug)]
pub struct Report {
    /// Label of the stream.
    pub label: String,
    /// Packets that were sent.
    pub sent: u64,
    /// Of these, the number that arrived.
    pub received: u64,
    /// Packets that arrived more than once.
    pub duplicates: u64,
    /// Numbers that never arrived.
    pub lost: Vec<u64>,
    /// Packets a second that were sent.
    pub rate: u64,
    /// The first error of the sender: such a packet counts as lost.
    pub refused: Option<String>,
}

/// The sockets of a stream.
struct Sockets {
    outgoing: UdpSocket,
    incoming: UdpSocket,
}

impl Sockets {
    /// Opens them at two places. The outgoing one is prepared before it is connected.
    fn open(from: Place, to: Place, prepare: fn(&UdpSocket) -> Result<()>) -> Result<Self> {
        let incoming = to.netns.enter(|| {
            let socket = UdpSocket::bind((to.address, 0))?;
            setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            Ok(socket)
        })?;
        let target = incoming.local_addr()?;
        let outgoing = from.netns.enter(|| {
            let socket = UdpSocket::bind((from.address, 0))?;
            prepare(&socket)?;
            socket.connect(target)?;
            Ok(socket)
        })?;
        Ok(Self { outgoing, incoming })
    }
}

impl Stream {
    /// Starts a stream of `rate` packets a second.
    ///
    /// # Errors
    /// When an address is missing.
    pub fn start(from: Place, to: Place, rate: u64, label: &str) -> Result<Self> {
        let sockets = Sockets::open(from, to, |_socket| Ok(()))?;
        let label = format!("{label} {} -> {}", from.address, to.address);
        Ok(Self::run(sockets, rate, label))
    }

    /// Starts a stream with IPv4 options in every packet: such packets take the host's stack.
    ///
    /// # Errors
    /// When an address is missing or no IPv4 one.
    pub fn start_by_stack(from: Place, to: Place, rate: u64, label: &str) -> Result<Self> {
        let sockets = Sockets::open(from, to, set_options)?;
        let label = format!("{label} {} -> {}", from.address, to.address);
        Ok(Self::run(sockets, rate, label))
    }

    fn run(sockets: Sockets, rate: u64, label: String) -> Self {
        let Sockets { outgoing, incoming } = sockets;
        let progress = Arc::new(Progress::default());
        let sender = {
            let progress = Arc::clone(&progress);
            thread::spawn(move || {
                let sent = send(&outgoing, rate, &progress);
                progress.is_over.store(true, Ordering::Release);
                sent
            })
        };
        let receiver = {
            let progress = Arc::clone(&progress);
            thread::spawn(move || receive(&incoming, &progress))
        };
        Self {
            label,
            progress,
            sender,
            receiver,
        }
    }

    /// Waits until all packets sent so far have arrived, so that none is in flight.
    ///
    /// # Errors
    /// When they do not arrive within the time that the last packets of a stream may take.
    pub fn drain(&self) -> Result<()> {
        let sent = self.progress.sent.load(Ordering::Acquire);
        eventually(TAIL, "the stream has arrived so far", || {
            let arrived = self.progress.arrived.load(Ordering::Acquire);
            check(arrived >= sent, || format!("{arrived} of {sent}"))
        })?;
        Ok(())
    }

    /// Ends the stream, once its last packets had time to arrive.
    ///
    /// # Errors
    /// When one of its threads panicked.
    pub fn finish(self) -> Result<Report> {
        self.progress.stop.store(true, Ordering::Relaxed);
        let died = |_panic| anyhow!("a stream's thread panicked");
        let sent = self.sender.join().map_err(died)?;
        let seen = self.receiver.join().map_err(died)?;
        let times = |number: u64| -> Result<u8> {
            let index = usize::try_from(number).context("a packet's number")?;
            Ok(seen.times.get(index).copied().unwrap_or_default())
        };
        let mut lost = Vec::new();
        let mut duplicates = 0;
        for number in 0..sent.numbers {
            match times(number)? {
                0 => lost.push(number),
                1 => {}
                more => duplicates += u64::from(more) - 1,
            }
        }
        let millis = u64::try_from(sent.time.as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        Ok(Report {
            label: self.label,
            sent: sent.numbers,
            received: sent.numbers - u64::try_from(lost.len()).context("lost packets")?,
            duplicates,
            lost,
            rate: sent.numbers * 1000 / millis,
            refused: sent.refused,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: sent {}, received {}, lost {}, duplicates {}, {} packets/s",
            self.label,
            self.sent,
            self.received,
            self.lost.len(),
            self.duplicates,
            self.rate
        )?;
        if let (Some(first), Some(last)) = (self.lost.first(), self.lost.last()) {
            write!(f, "; the lost ones lie between {first} and {last}")?;
        }
        if let Some(refused) = &self.refused {
            write!(f, "; the first that could not be sent: {refused}")?;
        }
        Ok(())
    }
}

/// Adds IPv4 options without effect to every packet of a socket (RFC 791 section 3.1: no
/// operation).
fn set_options(socket: &UdpSocket) -> Result<()> {
    let nothing = [1_u8; 4];
    // SAFETY: the option's value is valid for its length, and the kernel keeps a copy.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_OPTIONS,
            nothing.as_ptr().cast(),
            libc::socklen_t::try_from(nothing.len())?,
        )
    };
    Errno::result(set).context("IP_OPTIONS")?;
    Ok(())
}

fn send(socket: &UdpSocket, rate: u64, progress: &Progress) -> Sent {
    let start = Instant::now();
    let mut number = 0_u64;
    let mut refused = None;
    while !progress.stop.load(Ordering::Relaxed) {
        let elapsed = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let due = elapsed.saturating_mul(rate) / 1_000_000;
        for _ in 0..due.saturating_sub(number).min(BURST) {
            // Counted before it is sent: the kernel may hold it for long before the call returns.
            progress.sent.store(number + 1, Ordering::Release);
            if let Err(error) = socket.send(&number.to_be_bytes()) {
                refused.get_or_insert_with(|| format!("number {number}: {error}"));
            }
            number += 1;
        }
        thread::sleep(TICK);
    }
    Sent {
        numbers: number,
        refused,
        time: start.elapsed(),
    }
}

fn receive(socket: &UdpSocket, progress: &Progress) -> Seen {
    let mut seen = Seen::default();
    let mut count = 0;
    let mut last_seen = Instant::now();
    loop {
        let mut buffer = [0; 8];
        if let Ok(8) = socket.recv(&mut buffer) {
            // Bounded: the sender has counted to this number.
            let Ok(index) = usize::try_from(u64::from_be_bytes(buffer)) else {
                continue;
            };
            if seen.times.len() <= index {
                seen.times.resize(index + 1, 0);
            }
            if let Some(times) = seen.times.get_mut(index) {
                count += u64::from(*times == 0);
                *times = times.saturating_add(1);
            }
            progress.arrived.store(count, Ordering::Release);
            last_seen = Instant::now();
        }
        let is_over = progress.is_over.load(Ordering::Acquire);
        let sent = progress.sent.load(Ordering::Acquire);
        if is_over && (count >= sent || last_seen.elapsed() > TAIL) {
            return seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Netns;

    #[test]
    fn a_stream_knows_what_it_lost() {
        let name = format!("tp-{}-stream", std::process::id());
        let netns = Netns::create(&name).unwrap();
        let local = Place {
            netns: &netns,
            address: [127, 0, 0, 1].into(),
        };
        let clean = Stream::start(local, local, 2000, "clean").unwrap();
        thread::sleep(Duration::from_millis(300));
        let report = clean.finish().unwrap();
        assert!(report.lost.is_empty() && report.sent > 200, "{report}");

        netns
            .run("nft add table inet lossy")
            .and_then(|_| {
                netns.run("nft add chain inet lossy input { type filter hook input priority 0 ; }")
            })
            .and_then(|_| netns.run("nft add rule inet lossy input numgen inc mod 10 0 drop"))
            .unwrap();
        let lossy = Stream::start(local, local, 2000, "lossy").unwrap();
        thread::sleep(Duration::from_millis(300));
        let report = lossy.finish().unwrap();
        let lost = u64::try_from(report.lost.len()).unwrap();
        assert!(lost.abs_diff(report.sent / 10) <= 1, "{report}");
        assert_eq!(report.sent, report.received + lost);
    }
}
