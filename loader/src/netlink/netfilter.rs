//! A socket to netfilter's part of netlink (nfnetlink), for threads that may block: conntrack's
//! dump at the start, and the garbage-collection thread of flows.

use std::io;
use std::ops::ControlFlow;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use rtnetlink::sys::{Socket as Inner, SocketAddr, protocols::NETLINK_NETFILTER};

use super::errno::RequestError;
use super::socket::{Content, DATAGRAM, DUMP_ATTEMPTS, KERNEL, messages, piece, request};

/// The time that the kernel may take for the next part of an answer. It needs microseconds; without
/// a limit, a lost answer would block the thread for ever.
const REPLY_TIMEOUT_SECONDS: i64 = 10;

/// The subsystem of nfnetlink that a batch is for (`NFNL_SUBSYS_NFTABLES` in
/// include/uapi/linux/netfilter/nfnetlink.h).
const NFTABLES: u16 = 10;

/// A blocking nfnetlink socket with one request in flight at a time.
pub(crate) struct Socket {
    inner: Inner,
    sequence: u32,
    /// Room for what the kernel says.
    datagram: Vec<u8>,
    /// True if the last answer was read to its end. The kernel refuses a dump while another one is
    /// unfinished.
    is_at_rest: bool,
}

fn connect() -> io::Result<Inner> {
    let mut socket = Inner::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    // The reason as text, and no copy of the request with it.
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    setsockopt(
        &socket,
        sockopt::ReceiveTimeout,
        &TimeVal::seconds(REPLY_TIMEOUT_SECONDS),
    )?;
    Ok(socket)
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            inner: connect()?,
            sequence: 0,
            datagram: Vec::with_capacity(DATAGRAM),
            is_at_rest: true,
        })
    }

    /// Requests one object; success if it exists.
    pub(crate) fn get(&mut self, message: NetfilterMessage) -> Result<(), RequestError> {
        let mut ignore = |_: NetfilterMessage| ControlFlow::Continue(());
        self.exchange(message, NLM_F_ACK, &mut ignore).map(|_| ())
    }

    /// Requests one object, and shows it.
    pub(crate) fn get_shown(
        &mut self,
        message: NetfilterMessage,
        show: &mut dyn FnMut(NetfilterMessage),
    ) -> Result<(), RequestError> {
        let mut show = |message| {
            show(message);
            ControlFlow::Continue(())
        };
        self.exchange(message, NLM_F_ACK, &mut show).map(|_| ())
    }

    /// Makes nftables carry out all of these, each with its flags, or none of them.
    pub(crate) fn transact(
        &mut self,
        all: Vec<(NetfilterMessage, u16)>,
    ) -> Result<(), RequestError> {
        let edge = |message| {
            let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, NFTABLES);
            NetfilterMessage::new(header, message)
        };
        let first = self.sequence.wrapping_add(1);
        let mut last = first;
        let mut bytes = request(edge(ControlMessage::BatchBegin), 0, first);
        for (message, flags) in all {
            last = last.wrapping_add(1);
            bytes.extend(request(message, flags | NLM_F_ACK, last));
        }
        bytes.extend(request(
            edge(ControlMessage::BatchEnd),
            0,
            last.wrapping_add(1),
        ));
        self.sequence = last.wrapping_add(1);
        if !self.is_at_rest {
            self.inner = connect()?;
        }
        // Of a refused batch more may come than is read.
        self.is_at_rest = false;
        self.inner.send_to(&bytes, &SocketAddr::new(KERNEL, 0), 0)?;
        loop {
            self.receive()?;
            for bytes in messages(&self.datagram) {
                for sequence in first..=last {
                    let piece = piece::<NetfilterMessage>(bytes, sequence);
                    let Some(Content::End(end)) = piece.map(|piece| piece.content) else {
                        continue;
                    };
                    end?;
                    if sequence == last {
                        self.is_at_rest = true;
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads a whole table, or until `show` breaks off. A table that changes during the read is
    /// read again, a few times. `show` then gets an object more than once, and the objects of all
    /// attempts count.
    pub(crate) fn dump(
        &mut self,
        message: &NetfilterMessage,
        show: &mut dyn FnMut(NetfilterMessage) -> ControlFlow<()>,
    ) -> Result<(), RequestError> {
        for _ in 0..DUMP_ATTEMPTS {
            let interrupted = self.exchange(message.clone(), NLM_F_DUMP, show)?;
            if !interrupted {
                return Ok(());
            }
        }
        tracing::debug!(
            attempts = DUMP_ATTEMPTS,
            "no consistent dump of a table of netfilter"
        );
        Ok(())
    }

    /// One request and its answer; whether the table changed while it was read to its end.
    fn exchange(
        &mut self,
        message: NetfilterMessage,
        flags: u16,
        show: &mut dyn FnMut(NetfilterMessage) -> ControlFlow<()>,
    ) -> Result<bool, RequestError> {
        if !self.is_at_rest {
            self.inner = connect()?;
        }
        self.is_at_rest = false;
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request(message, flags, self.sequence);
        self.inner.send_to(&bytes, &SocketAddr::new(KERNEL, 0), 0)?;
        let mut interrupted = false;
        loop {
            self.receive()?;
            for bytes in messages(&self.datagram) {
                let Some(piece) = piece(bytes, self.sequence) else {
                    continue;
                };
                interrupted |= piece.interrupted;
                match piece.content {
                    Content::Nothing => {}
                    Content::Message(message) => {
                        if show(message).is_break() {
                            return Ok(false);
                        }
                    }
                    Content::End(end) => {
                        self.is_at_rest = true;
                        return end.map(|()| interrupted);
                    }
                }
            }
        }
    }

    /// Waits for the next datagram from the kernel.
    fn receive(&mut self) -> io::Result<()> {
        loop {
            self.datagram.clear();
            // With MSG_TRUNC the length is the real one, also of what did not fit.
            let received = self.inner.recv_from(&mut self.datagram, libc::MSG_TRUNC);
            match received {
                Ok((length, _)) if length > self.datagram.len() => {
                    return Err(io::Error::other(format!(
                        "a datagram of {length} bytes is longer than the kernel ever sends"
                    )));
                }
                Ok((_, from)) if from.port_number() == KERNEL => return Ok(()),
                // Any process may send to a netlink socket; only the kernel is listened to.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let text = format!("no answer within {REPLY_TIMEOUT_SECONDS} s");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Messages as a kernel sent them.
#[cfg(test)]
pub(crate) mod fixture {
    use netlink_packet_netfilter::NetfilterMessage;

    use super::super::socket::{Content, messages, piece};

    /// The request that they answered.
    pub(crate) const SEQUENCE: u32 = 7;

    /// Bytes that are written as hexadecimal digits.
    pub(crate) fn bytes(digits: &str) -> Vec<u8> {
        let digit = |digit: char| u8::try_from(digit.to_digit(16).unwrap()).unwrap();
        let digits: Vec<_> = digits.chars().map(digit).collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()
    }

    /// A message of the kernel's: its header before a payload.
    pub(crate) fn framed(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(0_u16.to_ne_bytes());
        bytes.extend(SEQUENCE.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(payload);
        bytes
    }

    /// The messages of a datagram.
    pub(crate) fn decode(datagram: &[u8]) -> Vec<NetfilterMessage> {
        messages(datagram)
            .filter_map(|bytes| piece(bytes, SEQUENCE))
            .filter_map(|piece| match piece.content {
                Content::Message(message) => Some(message),
                Content::Nothing | Content::End(_) => None,
            })
            .collect()
    }
}
