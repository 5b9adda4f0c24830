//! One connection: its request, read and answered.

use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

use super::{Phase, Slot};

/// The limits of time of a connection's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The request's head.
    pub(crate) head: Duration,
    /// All of it.
    pub(crate) whole: Duration,
}

/// Answers the only request of a connection and closes it, so that no caller can hold it open and
/// idle.
pub(crate) async fn serve<P, S>(slot: Slot<P>, stream: S, router: Router, times: Times)
where
    P: Copy + Eq + Hash + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let slot = Arc::new(slot);
    let answer = |request: Request<Incoming>| {
        let (slot, router) = (Arc::clone(&slot), router.clone());
        async move {
            let request = request.map(|body| Watched::new(body, &slot));
            let response = router.oneshot(request).await;
            slot.enter(Phase::Answering);
            response
        }
    };
    let connection = http1::Builder::new()
        .keep_alive(false)
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(times.head)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    let connection = async {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended early");
        }
    };
    slot.serve(times.whole, connection).await;
}

/// A request's body: once it is whole, the agent has work in hand.
struct Watched<P: Copy + Eq + Hash> {
    body: Incoming,
    slot: Arc<Slot<P>>,
}

impl<P: Copy + Eq + Hash> Watched<P> {
    fn new(body: Incoming, slot: &Arc<Slot<P>>) -> Self {
        if body.is_end_stream() {
            slot.enter(Phase::Handling);
        }
        let slot = Arc::clone(slot);
        Self { body, slot }
    }
}

impl<P: Copy + Eq + Hash> Body for Watched<P> {
    type Data = <Incoming as Body>::Data;
    type Error = <Incoming as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.slot.enter(Phase::Handling);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
