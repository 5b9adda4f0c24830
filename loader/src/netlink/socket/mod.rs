//! A netlink socket with one request in flight at a time.
//!
//! `rtnetlink`'s connection task is not used. It drops messages that it cannot decode, and hides
//! that a dump was interrupted. With both a present object would seem to be gone.

use std::io;

use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::sys::{Socket as Inner, SocketAddr, protocols::NETLINK_ROUTE};
use tokio::io::unix::AsyncFd;

use super::errno::RequestError;

/// The kernel's end of every netlink socket.
pub(super) const KERNEL: u32 = 0;
/// Number of attempts at a dump before one that the kernel calls inconsistent is accepted.
pub(super) const DUMP_ATTEMPTS: u32 = 4;
/// Length of a netlink message's header (`struct nlmsghdr`).
const HEADER: usize = 16;
/// Room for a datagram. The kernel fills up to 32 KiB of what the reader offers (`netlink_recvmsg`
/// in `net/netlink/af_netlink.c`).
pub(super) const DATAGRAM: usize = 64 * 1024;
/// `NLMSGERR_ATTR_MSG` in include/uapi/linux/netlink.h: the reason as text.
const ATTRIBUTE_REASON: u16 = 1;

/// A netlink socket with one request in flight at a time.
pub(super) struct Socket {
    fd: AsyncFd<Inner>,
    sequence: u32,
    /// A request whose caller went away before the answer was complete. Its rest has to be read
    /// before the next request: the kernel refuses a dump while another one is unfinished.
    unanswered: Option<u32>,
}

/// The use that is made of the answer to one request.
struct Answer<'a> {
    show: &'a mut (dyn FnMut(RouteNetlinkMessage) + Send),
    interrupted: bool,
}

/// Opens a socket in the calling thread's network namespace.
pub(super) fn connect() -> io::Result<Inner> {
    let mut socket = Inner::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.set_non_blocking(true)?;
    // The reason as text, and no copy of the request with it.
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    // Since 4.20 the kernel validates and applies the filters in a dump's header.
    socket.set_netlink_get_strict_chk(true)?;
    Ok(socket)
}

/// Hands a socket to the runtime that this is called in.
pub(super) fn register(inner: Inner) -> io::Result<AsyncFd<Inner>> {
    // SAFETY: the socket owns its descriptor, which stays the same one for as long as it lives,
    // and nothing takes the socket out of the `AsyncFd` or replaces it.
    unsafe { AsyncFd::register(inner) }.map_err(io::Error::from)
}

impl Socket {
    /// Hands a socket to the runtime that this is called in.
    pub(super) fn new(inner: Inner) -> io::Result<Self> {
        Ok(Self {
            fd: register(inner)?,
            sequence: 0,
            unanswered: None,
        })
    }

    /// Reads a whole table. The request is repeated after an inconsistent answer.
    ///
    /// If other programs change the table all the time, no answer may ever be consistent. Then the
    /// objects of all attempts count as present, oldest first. An object that has gone in between
    /// does little harm: its notification leads to a new observation. A present object that seems
    /// gone would be recreated under its users.
    pub(super) async fn dump(
        &mut self,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, RequestError> {
        let mut seen = Vec::new();
        for _ in 0..DUMP_ATTEMPTS {
            let before = seen.len();
            let mut keep = |message| seen.push(message);
            let interrupted = self
                .exchange(message.clone(), NLM_F_DUMP, &mut keep)
                .await?;
            if !interrupted {
                return Ok(seen.split_off(before));
            }
        }
        tracing::debug!(
            attempts = DUMP_ATTEMPTS,
            "no consistent dump of a kernel table"
        );
        Ok(seen)
    }

    /// Shows every object of a table that may be too long to be held. The request is repeated after
    /// an inconsistent answer. Then some objects are shown more than once, and some that have gone
    /// in between.
    pub(super) async fn dump_each(
        &mut self,
        message: RouteNetlinkMessage,
        show: &mut (dyn FnMut(RouteNetlinkMessage) + Send),
    ) -> Result<(), RequestError> {
        for _ in 0..DUMP_ATTEMPTS {
            let interrupted = self.exchange(message.clone(), NLM_F_DUMP, show).await?;
            if !interrupted {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads one object.
    pub(super) async fn get(
        &mut self,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, RequestError> {
        let mut messages = Vec::new();
        let mut keep = |message| messages.push(message);
        self.exchange(message, NLM_F_ACK, &mut keep).await?;
        Ok(messages)
    }

    /// Changes one object; `flags` say what to do when it is there or not.
    pub(super) async fn change(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), RequestError> {
        let flags = NLM_F_ACK | flags;
        self.exchange(message, flags, &mut |_| {}).await.map(|_| ())
    }

    /// Sends a request and shows its answer; true if that is not consistent.
    async fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        show: &mut (dyn FnMut(RouteNetlinkMessage) + Send),
    ) -> Result<bool, RequestError> {
        if let Some(sequence) = self.unanswered {
            // The result of the abandoned request does not matter, since its caller has gone.
            if let Err(RequestError::Socket(error)) = self.answer(sequence, &mut |_| {}).await {
                return Err(error.into());
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.send(&request(message, flags, self.sequence)).await?;
        self.unanswered = Some(self.sequence);
        self.answer(self.sequence, show).await
    }

    async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let kernel = SocketAddr::new(KERNEL, 0);
        loop {
            let mut ready = self.fd.writable().await?;
            if let Ok(sent) = ready.try_io(|fd| fd.get_ref().send_to(bytes, &kernel, 0)) {
                return sent.map(|_| ());
            }
        }
    }

    /// Shows the answer to a request up to its end; true if it is not consistent.
    async fn answer(
        &mut self,
        sequence: u32,
        show: &mut (dyn FnMut(RouteNetlinkMessage) + Send),
    ) -> Result<bool, RequestError> {
        let mut answer = Answer {
            show,
            interrupted: false,
        };
        loop {
            let datagram = match receive(&self.fd).await {
                Ok(datagram) => datagram,
                Err(error) => {
                    // The end may be among what was lost; waiting for it could be for ever.
                    self.unanswered = None;
                    return Err(error.into());
                }
            };
            for bytes in messages(&datagram) {
                if let Some(end) = answer.take(bytes, sequence) {
                    self.unanswered = None;
                    return end.map(|()| answer.interrupted);
                }
            }
        }
    }
}

impl Answer<'_> {
    /// Takes one message; returns how the request ended when it is the last one.
    fn take(&mut self, bytes: &[u8], sequence: u32) -> Option<Result<(), RequestError>> {
        let piece = piece(bytes, sequence)?;
        self.interrupted |= piece.interrupted;
        match piece.content {
            Content::Message(message) => {
                (self.show)(message);
                None
            }
            Content::Nothing => None,
            Content::End(end) => Some(end),
        }
    }
}

/// One message of an answer.
pub(super) struct Piece<T> {
    /// True if the dumped objects changed during the dump.
    pub(super) interrupted: bool,
    /// Its content.
    pub(super) content: Content<T>,
}

/// The content of one message of an answer.
pub(super) enum Content<T> {
    /// An object.
    Message(T),
    /// Nothing that can be used.
    Nothing,
    /// The end of the answer, with the result of the request.
    End(Result<(), RequestError>),
}

/// A request's bytes.
pub(super) fn request<T: NetlinkSerializable>(message: T, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = sequence;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    bytes
}

/// Decodes one message; `None` when it belongs to another request.
pub(super) fn piece<T: NetlinkDeserializable>(bytes: &[u8], sequence: u32) -> Option<Piece<T>> {
    let header = NetlinkBuffer::new_checked(bytes).ok()?;
    if header.sequence_number() != sequence {
        return None;
    }
    let last = matches!(header.message_type(), NLMSG_DONE | NLMSG_ERROR);
    let content = match NetlinkMessage::<T>::deserialize(bytes) {
        Ok(message) => match message.payload {
            NetlinkPayload::InnerMessage(inner) => Content::Message(inner),
            NetlinkPayload::Done(done) => Content::End(refusal(done.code, None)),
            NetlinkPayload::Error(error) => {
                let reason = reason(&error, message.header.flags);
                Content::End(refusal(error.raw_code(), reason))
            }
            _ => Content::Nothing,
        },
        Err(error) if last => Content::End(Err(io::Error::other(error).into())),
        Err(error) => {
            // This happens with every observation, which is too often for a warning.
            tracing::debug!(
                message_type = header.message_type(),
                %error,
                "a netlink message was left out: it cannot be decoded"
            );
            Content::Nothing
        }
    };
    Some(Piece {
        interrupted: header.flags() & NLM_F_DUMP_INTR != 0,
        content,
    })
}

fn refusal(code: i32, reason: Option<String>) -> Result<(), RequestError> {
    match code {
        0 => Ok(()),
        code => Err(RequestError::Refused {
            errno: code.saturating_abs(),
            reason,
        }),
    }
}

/// The kernel's reason as text. It follows the header of the request, which is all of the request
/// that comes back.
fn reason(error: &ErrorMessage, flags: u16) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let attributes = error.header.get(HEADER..)?;
    let text = NlasIterator::new(attributes)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == ATTRIBUTE_REASON)?;
    let text = String::from_utf8_lossy(text.value());
    Some(text.trim_end_matches('\0').to_owned())
}

/// The next datagram from the kernel.
pub(super) async fn receive(fd: &AsyncFd<Inner>) -> io::Result<Vec<u8>> {
    let mut datagram = Vec::with_capacity(DATAGRAM);
    loop {
        datagram.clear();
        let mut ready = fd.readable().await?;
        // With MSG_TRUNC the length is the real one, also of what did not fit.
        let flags = libc::MSG_TRUNC;
        match ready.try_io(|fd| fd.get_ref().recv_from(&mut datagram, flags)) {
            Ok(Ok((length, _))) if length > datagram.len() => {
                return Err(io::Error::other(format!(
                    "a datagram of {length} bytes is longer than the kernel ever sends"
                )));
            }
            Ok(Ok((_, from))) if from.port_number() == KERNEL => return Ok(datagram),
            // Any process may send to a netlink socket; only the kernel is listened to.
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(error)) => return Err(error),
        }
    }
}

/// The messages of a datagram, each from its header on.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = NetlinkBuffer::new_checked(rest).ok()?.length();
        let length = usize::try_from(length).ok()?;
        let message = rest.get(..length)?;
        // Messages begin at multiples of four bytes (NLMSG_ALIGNTO).
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

#[cfg(test)]
mod tests;
