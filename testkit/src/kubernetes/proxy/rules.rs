//! Rules of the proxy: requests to catch, and the action for each.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hyper::Method;
use serde_json::Value;
use tokio::sync::watch;

/// A request, as the proxy sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path, without a query.
    pub path: String,
    /// The query.
    pub query: String,
    /// The body; null where it is not JSON.
    pub body: Value,
}

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All requests.
    Any,
    /// Watches.
    Watch,
    /// Requests that return all objects of a resource, by the end of its path: a list or a stream.
    List(&'static str),
    /// Watches of a resource, by the end of its path.
    WatchOf(&'static str),
    /// Watches that begin with all objects.
    Stream,
    /// Creations of the `CiliumNode`.
    MakeNode,
    /// Changes of the `CiliumNode`, except its status.
    ChangeNode,
    /// Changes of the `CiliumNode`'s status.
    ChangeStatus,
}

impl Request {
    /// True if the request is of a kind.
    #[must_use]
    pub fn is(&self, kind: Kind) -> bool {
        let is_of_status = self.path.ends_with("/status");
        let is_of_node = self.path.contains("/ciliumnodes");
        let is_of_nodes = is_of_node && !is_of_status;
        match kind {
            Kind::Any => true,
            Kind::Watch => self.is_watch(),
            Kind::List(resource) => {
                let is_read = self.method == Method::GET && !self.is_watch();
                (is_read || self.is_stream()) && self.path.ends_with(resource)
            }
            Kind::WatchOf(resource) => self.is_watch() && self.path.ends_with(resource),
            Kind::Stream => self.is_stream(),
            Kind::MakeNode => is_of_nodes && self.method == Method::POST,
            Kind::ChangeNode => is_of_nodes && self.method == Method::PATCH,
            Kind::ChangeStatus => is_of_node && is_of_status && self.method == Method::PATCH,
        }
    }

    /// True if the request is a watch.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.method == Method::GET && (self.asks("watch=true") || self.asks("watch=1"))
    }

    /// True for a watch that begins with all objects.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.is_watch() && self.asks("sendInitialEvents=true")
    }

    fn asks(&self, pair: &str) -> bool {
        self.query.split('&').any(|other| other == pair)
    }

    /// True if the request is a write.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }
}

/// Action for a request that is caught.
#[derive(Clone, Debug)]
pub enum Does {
    /// The proxy answers it, with a status code, headers and a body.
    Answer(u16, Vec<(&'static str, String)>, Value),
    /// The connection ends without an answer.
    Lose {
        /// True if the request first goes to the server.
        is_forwarded: bool,
    },
    /// The request waits until the test releases or drops it.
    Hold(Hold),
}

/// Point at which a request waits.
#[derive(Clone, Debug)]
pub struct Hold {
    /// True if the request first goes to the server.
    pub(super) is_forwarded: bool,
    pub(super) wait: Wait,
}

/// The proxy's side of a request that is held.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    reached: mpsc::Sender<Request>,
    until: watch::Receiver<()>,
}

impl Wait {
    /// Waits.
    ///
    /// # Errors
    /// When the connection is to end.
    pub(super) async fn here(&mut self, request: &Request) -> Result<()> {
        // The test may no longer wait for the request.
        self.reached.send(request.clone()).ok();
        let changed = self.until.changed().await;
        changed.context("the connection ends while the request is held")
    }
}

/// A rule that catches a number of requests of a kind.
#[derive(Clone, Debug)]
pub struct Rule {
    kind: Kind,
    times: usize,
    does: Does,
}

impl Rule {
    /// Catches the next requests of a kind.
    #[must_use]
    pub const fn next(times: usize, kind: Kind, does: Does) -> Self {
        Self { kind, times, does }
    }

    /// Catches all of a kind.
    #[must_use]
    pub const fn all(kind: Kind, does: Does) -> Self {
        Self::next(usize::MAX, kind, does)
    }

    /// The outcome of a request, if this catches it.
    pub(super) fn catches(&mut self, request: &Request) -> Option<Does> {
        if self.times == 0 || !request.is(self.kind) {
            return None;
        }
        self.times -= 1;
        Some(self.does.clone())
    }
}

/// A request that is to be held. When this is dropped, its connection ends without an answer.
#[derive(Debug)]
pub struct Held {
    reached: mpsc::Receiver<Request>,
    until: watch::Sender<()>,
}

impl Held {
    /// A rule that holds the next request of a kind, and the test's side of it.
    pub(super) fn rule(kind: Kind, is_forwarded: bool) -> (Rule, Self) {
        let (arrived, reached) = mpsc::channel();
        let (sender, until) = watch::channel(());
        let wait = Wait {
            reached: arrived,
            until,
        };
        let does = Does::Hold(Hold { is_forwarded, wait });
        let held = Self {
            reached,
            until: sender,
        };
        (Rule::next(1, kind, does), held)
    }

    /// Waits for the request, and returns it.
    ///
    /// # Errors
    /// When there is none in time.
    pub fn wait(&self, deadline: Duration) -> Result<Request> {
        let reached = self.reached.recv_timeout(deadline);
        reached.context("no such request came")
    }

    /// Lets the request continue.
    pub fn release(self) {
        self.until.send_replace(());
    }
}
