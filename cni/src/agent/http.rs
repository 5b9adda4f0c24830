//! One request and its answer over a Unix socket: HTTP/1.0, for by that version the server never
//! answers in chunks (RFC 9112 section 6.1), and closes when it has answered.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::fault_points::{self, Exchange, Stage};

/// The time that the agent may take to accept a connection. It accepts at once unless it is stuck.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Largest answer that is read, in bytes.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Most header fields of an answer.
const MAX_FIELDS: usize = 64;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The status code.
    pub(super) status: u16,
    /// The body.
    pub(super) body: Vec<u8>,
}

/// Reason why there is no answer.
#[derive(Debug)]
pub(super) enum Error {
    /// No process accepts connections.
    Connect(io::Error),
    /// It took too long.
    Timeout,
    /// The connection ended, or what came is no HTTP.
    Broken(String),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) body: &'a [u8],
    /// Its kind, for fault points.
    pub(super) kind: Exchange,
}

/// Sends a request to the process that listens at `socket`. The answer has `patience` to arrive.
pub(super) fn exchange(
    socket: &Path,
    request: Request<'_>,
    patience: Duration,
) -> Result<Answer, Error> {
    let Request {
        method,
        path,
        body,
        kind,
    } = request;
    let deadline = Instant::now() + patience;
    fault_points::reach(kind.at(Stage::Connect));
    let mut stream = open(socket, patience.min(CONNECT_PATIENCE)).map_err(Error::Connect)?;
    stream
        .set_write_timeout(Some(patience))
        .map_err(|error| broken(&error))?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: towpath\r\nUser-Agent: towpath-cni/{}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        env!("CARGO_PKG_VERSION"),
        body.len()
    );
    stream
        .write_all(&[head.as_bytes(), body].concat())
        .map_err(|error| broken(&error))?;
    fault_points::reach(kind.at(Stage::Sent));
    let answer = read(&mut stream, deadline)?;
    fault_points::reach(kind.at(Stage::Answered));
    Ok(answer)
}

/// Connects. While the listener's queue is full, the kernel waits for as long as a send may take.
fn open(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let stream = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let seconds = i64::try_from(patience.as_secs().max(1)).unwrap_or(i64::MAX);
    setsockopt(&stream, sockopt::SendTimeout, &TimeVal::new(seconds, 0))?;
    connect(
        std::os::fd::AsRawFd::as_raw_fd(&stream),
        &UnixAddr::new(path)?,
    )?;
    Ok(UnixStream::from(stream))
}

fn read(stream: &mut UnixStream, deadline: Instant) -> Result<Answer, Error> {
    let mut received = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        if let Some(answer) = parse(&received, false)? {
            return Ok(answer);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Timeout);
        }
        stream
            .set_read_timeout(Some(left))
            .map_err(|error| broken(&error))?;
        match stream.read(&mut chunk) {
            Ok(0) => {
                let cut = || Error::Broken("the connection ended before the answer".to_owned());
                return parse(&received, true)?.ok_or_else(cut);
            }
            Ok(count) => received.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(&error)),
        }
        if received.len() > MAX_ANSWER {
            return Err(Error::Broken(format!(
                "the answer is longer than {MAX_ANSWER} bytes"
            )));
        }
    }
}

/// The answer in what was received; `None` as long as something is missing.
fn parse(received: &[u8], ended: bool) -> Result<Option<Answer>, Error> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response
        .parse(received)
        .map_err(|error| Error::Broken(format!("no HTTP: {error}")))?;
    let (httparse::Status::Complete(start), Some(status)) = (parsed, response.code) else {
        return Ok(None);
    };
    let mut length = None;
    for field in response.headers.iter() {
        if field.name.eq_ignore_ascii_case("transfer-encoding") {
            let error = "the answer has a transfer encoding, which HTTP/1.0 does not support";
            return Err(Error::Broken(error.to_owned()));
        }
        if field.name.eq_ignore_ascii_case("content-length") {
            let text = str::from_utf8(field.value).unwrap_or_default();
            let value: usize = text.trim().parse().map_err(|_no_number| {
                Error::Broken(format!("Content-Length is {text:?}: a number is allowed"))
            })?;
            length = Some(value);
        }
    }
    let body = received.get(start..).unwrap_or_default();
    let body = match length {
        Some(length) => body.get(..length),
        None => ended.then_some(body),
    };
    Ok(body.map(|body| Answer {
        status,
        body: body.to_owned(),
    }))
}

fn broken(error: &io::Error) -> Error {
    match error.kind() {
        // Error codes of a socket's timeout, which differ between systems.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Timeout,
        _ => Error::Broken(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: y\r\n\r\n{}";

    #[test]
    fn an_answer_is_there_when_all_of_it_is() {
        for end in 0..ANSWER.len() {
            assert_eq!(parse(&ANSWER[..end], false).unwrap(), None, "{end}");
        }
        let answer = parse(ANSWER, false).unwrap().unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"{}"[..]));
    }

    #[test]
    fn without_a_length_the_end_is_the_end() {
        let text = b"HTTP/1.0 503 Busy\r\n\r\n{\"a\":";
        assert_eq!(parse(text, false).unwrap(), None);
        assert_eq!(parse(text, true).unwrap().unwrap().body, b"{\"a\":");
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for text in [
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ] {
            assert!(parse(text.as_bytes(), false).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _outcome = parse(&bytes, true);
            let mut begun = b"HTTP/1.1 200 OK\r\n".to_vec();
            begun.extend(bytes);
            let _outcome = parse(&begun, true);
        }
    }
}
