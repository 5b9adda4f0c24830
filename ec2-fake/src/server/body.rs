//! The body of an answer, which a fault may cut.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// A body that is sent whole, or half: the connection then ends in the middle of it.
#[derive(Debug)]
pub(super) struct Sent {
    length: u64,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    Whole(Bytes),
    Half(Bytes),
    Flush,
    Break,
    End,
}

impl Sent {
    /// All of a body.
    pub(super) fn whole(body: Vec<u8>) -> Self {
        Self {
            length: length(&body),
            rest: Rest::Whole(body.into()),
        }
    }

    /// Half of a body, with the length of the whole in its header.
    pub(super) fn half(mut body: Vec<u8>) -> Self {
        let length = length(&body);
        body.truncate(body.len() / 2);
        Self {
            length,
            rest: Rest::Half(body.into()),
        }
    }
}

fn length(body: &[u8]) -> u64 {
    u64::try_from(body.len()).unwrap_or(u64::MAX)
}

impl Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match std::mem::replace(&mut self.rest, Rest::End) {
            Rest::Whole(body) => Poll::Ready(Some(Ok(Frame::data(body)))),
            Rest::Half(body) => {
                self.rest = Rest::Flush;
                Poll::Ready(Some(Ok(Frame::data(body))))
            }
            Rest::Flush => {
                // The server sends what it has when a body makes it wait.
                self.rest = Rest::Break;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Rest::Break => Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into()))),
            Rest::End => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}
