//! The operations: sockets, two threads, and a clock.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};
use testkit::fabric::Place;
use testkit::fabric::traffic::uninterrupted;

use super::clock::{Clock, Took};
use super::lane::Lane;
use super::operation::Operation;

/// A small message.
const SMALL: usize = 64;
/// A large write.
const LARGE: usize = 64 * 1024;
/// Datagrams in flight before the server reads.
const BURST: u32 = 32;
/// The time that a side waits for the other.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence after the last datagram that ends a flood.
const SILENCE: Duration = Duration::from_millis(200);
/// Datagrams of a flood between two readings of the clock, which cost as much as a few of them.
const LOOK: u32 = 512;
/// Room for a whole flood: a small datagram takes less than a kilobyte of it.
const FLOOD_ROOM: usize = 8 << 20;

/// Does an operation `count` times, after a few uncounted ones.
///
/// # Errors
/// When the two do not reach each other, or something is lost.
pub fn run(clock: &Clock, lane: Lane<'_>, operation: Operation, count: u32) -> Result<Took> {
    match operation {
        Operation::UdpOneWay => one_way(clock, lane, count),
        Operation::UdpExchange => udp_exchange(clock, lane, count),
        Operation::TcpExchange => tcp_exchange(clock, lane, count),
        Operation::TcpConnection => connections(clock, lane, count),
        Operation::BulkOut | Operation::BulkOutSegments => bulk_out(clock, lane, count),
        Operation::BulkIn | Operation::BulkInSegments => bulk_in(clock, lane, count),
        Operation::UdpRate => flood(clock, lane, count),
    }
}

/// Runs a client in its namespace and a server, both on the one CPU. A side that fails closes its
/// sockets, which ends the other.
fn beside<T: Send, S: Send>(
    clock: &Clock,
    at: Place<'_>,
    server: impl FnOnce() -> Result<S> + Send,
    client: impl FnOnce() -> Result<T> + Send,
) -> Result<(T, S)> {
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            clock.pin()?;
            server()
        });
        let client = at.netns.enter(|| {
            clock.pin()?;
            client()
        });
        let served = server
            .join()
            .map_err(|_panic| anyhow!("a server panicked"))?;
        Ok((client?, served.context("the server")?))
    })
}

/// A datagram socket of the client's, one of the server's, and the server's address.
fn udp(lane: Lane<'_>) -> Result<(UdpSocket, UdpSocket, SocketAddr)> {
    let bind = |place: Place<'_>| {
        place.netns.enter(|| {
            let socket = UdpSocket::bind((place.address, 0))?;
            socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
            Ok(socket)
        })
    };
    let (client, server) = (bind(lane.client)?, bind(lane.server)?);
    let address = server.local_addr()?;
    client.connect(address)?;
    Ok((client, server, address))
}

fn listen(lane: Lane<'_>) -> Result<(TcpListener, SocketAddr)> {
    lane.server.netns.enter(|| {
        let listener = TcpListener::bind((lane.server.address, 0))?;
        // Accepted connections inherit it.
        let patience = TimeVal::seconds(REPLY_TIMEOUT.as_secs().try_into()?);
        setsockopt(&listener, sockopt::ReceiveTimeout, &patience)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    })
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    Ok(stream)
}

fn one_way(clock: &Clock, lane: Lane<'_>, count: u32) -> Result<Took> {
    let (client, server, _) = udp(lane)?;
    let (sent, bursts) = channel();
    let (read, acknowledged) = channel();
    let serve = move || {
        let mut buffer = [0; SMALL];
        for burst in bursts {
            for _ in 0..burst {
                uninterrupted(|| server.recv(&mut buffer)).context("a datagram was lost")?;
            }
            read.send(())?;
        }
        Ok(())
    };
    let burst = move |size: u32| -> Result<()> {
        for _ in 0..size {
            client.send(&[0; SMALL])?;
        }
        sent.send(size)?;
        Ok(acknowledged.recv()?)
    };
    let ask = move || {
        burst(BURST)?;
        let then = clock.now()?;
        let mut left = count;
        while left > 0 {
            let size = left.min(BURST);
            burst(size)?;
            left -= size;
        }
        clock.since(then, count)
    };
    Ok(beside(clock, lane.client, serve, ask)?.0)
}

/// Receives the datagrams that arrive; only silence shows that there are no more.
fn flood(clock: &Clock, lane: Lane<'_>, count: u32) -> Result<Took> {
    let (client, server, _) = udp(lane)?;
    setsockopt(&server, sockopt::RcvBufForce, &FLOOD_ROOM)?;
    server.set_read_timeout(Some(SILENCE))?;
    let (begin, begun) = channel();
    let serve = move || {
        let mut buffer = [0; SMALL];
        uninterrupted(|| server.recv(&mut buffer)).context("nothing arrived")?;
        let then = clock.now()?;
        begin.send(())?;
        let (mut arrived, mut took) = (0, None);
        while arrived < count && uninterrupted(|| server.recv(&mut buffer)).is_ok() {
            arrived += 1;
            // The loss of the last ones only shows by a timeout, which must not count.
            if arrived == count || arrived.is_multiple_of(LOOK) {
                took = Some(clock.since(then, arrived)?);
            }
        }
        took.context("nothing of a flood arrived")
    };
    let ask = move || {
        client.send(&[0; SMALL])?;
        begun.recv()?;
        for _ in 0..count {
            client.send(&[0; SMALL])?;
        }
        Ok(())
    };
    Ok(beside(clock, lane.client, serve, ask)?.1)
}

fn udp_exchange(clock: &Clock, lane: Lane<'_>, count: u32) -> Result<Took> {
    let (client, server, _) = udp(lane)?;
    let warm = count / 16 + 4;
    let serve = move || {
        let mut buffer = [0; SMALL];
        for _ in 0..warm + count {
            let (length, from) = uninterrupted(|| server.recv_from(&mut buffer))?;
            server.send_to(&buffer[..length], from)?;
        }
        Ok(())
    };
    let ask = move || {
        let mut buffer = [0; SMALL];
        timed(clock, warm, count, || {
            client.send(&buffer)?;
            uninterrupted(|| client.recv(&mut buffer)).context("a datagram was lost")?;
            Ok(())
        })
    };
    Ok(beside(clock, lane.client, serve, ask)?.0)
}

fn tcp_exchange(clock: &Clock, lane: Lane<'_>, count: u32) -> Result<Took> {
    let (listener, address) = listen(lane)?;
    let warm = count / 16 + 4;
    let serve = move || {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut buffer = [0; SMALL];
        for _ in 0..warm + count {
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
        }
        Ok(())
    };
    let ask = move || {
        let mut stream = connect(address)?;
        let mut buffer = [0; SMALL];
        timed(clock, warm, count, || {
            stream.write_all(&buffer)?;
            Ok(stream.read_exact(&mut buffer)?)
        })
    };
    Ok(beside(clock, lane.client, serve, ask)?.0)
}

fn connections(clock: &Clock, lane: Lane<'_>, count: u32) -> Result<Took> {
    let (listener, address) = listen(lane)?;
    let warm = count / 16 + 2;
    let serve = move || {
        let mut buffer = [0; SMALL];
        for _ in 0..warm + count {
            let (mut stream, _) = listener.accept()?;
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
            // The client closes first, so that its port is in TIME_WAIT.
            stream.read_exact(&mut buffer[..1]).err();
        }
        Ok(())
    };
    let ask = move || {
        let mut buffer = [0; SMALL];
        timed(clock, warm, count, || {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(&buffer)?;
            Ok(stream.read_exact(&mut buffer)?)
        })
    };
    Ok(beside(clock, lane.client, serve, ask)?.0)
}

/// Does something some times uncounted, then `count` times counted.
fn timed(
    clock: &Clock,
    warm: u32,
    count: u32,
    mut once: impl FnMut() -> Result<()>,
) -> Result<Took> {
    for _ in 0..warm {
        once()?;
    }
    let then = clock.now()?;
    for _ in 0..count {
        once()?;
    }
    clock.since(then, count)
}

/// Large writes before the counted ones, so that the congestion window is open.
const WARM_WRITES: u32 = 48;

/// Writes, and waits until all data has been read before the clock starts and before it stops.
fn write_large(
    clock: &Clock,
    stream: &mut TcpStream,
    count: u32,
    read: &Receiver<()>,
) -> Result<Took> {
    let data = vec![0; LARGE];
    let mut write = |count| -> Result<()> {
        for _ in 0..count {
            stream.write_all(&data)?;
        }
        Ok(read.recv()?)
    };
    write(WARM_WRITES)?;
    let then = clock.now()?;
    write(count)?;
    clock.since(then, count)
}

fn read_large(stream: &mut TcpStream, count: u32, read: &Sender<()>) -> Result<()> {
    let mut buffer = vec![0; LARGE];
    for count in [WARM_WRITES, count] {
        for _ in 0..count {
            stream.read_exact(&mut buffer)?;
        }
        read.send(())?;
    }
    Ok(())
}

fn bulk_out(clock: &Clock, lane: Lane<'_>, count: u32) -> Result<Took> {
    let (listener, address) = listen(lane)?;
    let (read, acknowledged) = channel();
    let serve = move || read_large(&mut listener.accept()?.0, count, &read);
    let ask = move || write_large(clock, &mut connect(address)?, count, &acknowledged);
    Ok(beside(clock, lane.client, serve, ask)?.0)
}

fn bulk_in(clock: &Clock, lane: Lane<'_>, count: u32) -> Result<Took> {
    let (listener, address) = listen(lane)?;
    let (read, acknowledged) = channel();
    let serve = move || write_large(clock, &mut listener.accept()?.0, count, &acknowledged);
    let ask = move || read_large(&mut connect(address)?, count, &read);
    Ok(beside(clock, lane.client, serve, ask)?.1)
}
