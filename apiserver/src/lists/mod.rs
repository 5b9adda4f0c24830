//! Initial lists of followed objects, before their changes. If the API server supports it, the
//! watch itself streams them, so that it builds no list for each node. Without that support they
//! are listed.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use hyper::Request;
use hyper::http::Uri;
use hyper::http::uri::PathAndQuery;
use kube::runtime::watcher::{Config, Error, Event, Result, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use super::cause;

/// The time that a stream may take to deliver all objects. A server that does not support such
/// streams begins a plain watch, and never reports that all are delivered.
const BOUND: Duration = Duration::from_secs(30);
/// Parameter of a request for a stream.
const STREAMED: &str = "sendInitialEvents";

/// Way to get initial lists, shared by all watches of a connection. A server without streams is
/// detected once.
#[derive(Clone)]
pub struct Lists {
    are_streamed: Arc<AtomicBool>,
    bound: Duration,
    /// The API server's URL.
    server: Arc<str>,
}

impl Default for Lists {
    fn default() -> Self {
        Self {
            are_streamed: Arc::new(AtomicBool::new(true)),
            bound: BOUND,
            server: Arc::default(),
        }
    }
}

impl Lists {
    /// Those of a server, by its URL.
    pub(super) fn of(server: String) -> Self {
        Self {
            server: server.into(),
            ..Self::default()
        }
    }

    /// Describes an error: the whole chain of causes, and the server's URL.
    #[must_use]
    pub fn describe(&self, error: &(dyn std::error::Error + 'static)) -> String {
        let text = cause::chain(error);
        if self.server.is_empty() || text.contains(&*self.server) {
            return text;
        }
        format!("{}: {text}", self.server)
    }

    /// Follows a resource as [`watcher`] does. A server that does not stream is no error.
    pub fn follow<K>(
        &self,
        api: Api<K>,
        config: Config,
    ) -> impl Stream<Item = Result<Event<K>>> + Send + use<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let mut following = Following {
            lists: self.clone(),
            api,
            config,
            events: stream::empty().boxed(),
            is_streaming: false,
            began: None,
        };
        following.begin(self.are_streamed());
        stream::unfold(following, |mut following| async {
            let event = following.next().await?;
            Some((event, following))
        })
    }

    fn are_streamed(&self) -> bool {
        self.are_streamed.load(Ordering::Relaxed)
    }

    /// Switches to lists permanently.
    fn give_up(&self, why: &str) {
        if self.are_streamed.swap(false, Ordering::Relaxed) {
            tracing::info!(
                "the API server does not stream lists; falling back to list requests: {why}"
            );
        }
    }
}

/// A resource that is followed.
struct Following<K> {
    lists: Lists,
    api: Api<K>,
    config: Config,
    events: BoxStream<'static, Result<Event<K>>>,
    /// True if the objects come by streams.
    is_streaming: bool,
    /// Since when such a stream brings them.
    began: Option<Instant>,
}

impl<K> Following<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// Begins with all objects.
    fn begin(&mut self, is_streaming: bool) {
        let mut config = self.config.clone();
        if is_streaming {
            config = config.streaming_lists();
        }
        self.events = watcher(self.api.clone(), config).boxed();
        self.is_streaming = is_streaming;
        self.began = None;
    }

    async fn next(&mut self) -> Option<Result<Event<K>>> {
        loop {
            let Ok(event) = self.in_time().await else {
                let bound = self.lists.bound;
                let why = format!("no end of the list within {bound:?}");
                self.lists.give_up(&why);
                self.begin(false);
                continue;
            };
            let event = event?;
            if self.is_streaming {
                if self.is_to_list(&event) {
                    self.begin(false);
                    continue;
                }
            } else if matches!(event, Err(Error::InitialListFailed(_))) {
                // The server was in trouble: that says nothing of its streams.
                self.begin(self.lists.are_streamed());
            }
            return Some(event);
        }
    }

    async fn in_time(&mut self) -> Result<Option<Result<Event<K>>>, Elapsed> {
        match self.began {
            Some(began) => timeout_at(began + self.lists.bound, self.events.next()).await,
            None => Ok(self.events.next().await),
        }
    }

    /// True if the event means that the objects have to be listed.
    fn is_to_list(&mut self, event: &Result<Event<K>>) -> bool {
        match event {
            // The former stream has ended in the middle, without a reason.
            Ok(Event::Init) if self.began.is_some() => true,
            Ok(Event::Init) => {
                self.began = Some(Instant::now());
                !self.lists.are_streamed()
            }
            Ok(Event::InitApply(_)) => false,
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => {
                self.began = None;
                false
            }
            Err(error) => {
                let brought = self.began.take().is_some();
                if is_refusal(error) {
                    self.lists.give_up(&error.to_string());
                    return true;
                }
                // Such a server cannot stream now, or with this store of its own, but may list.
                brought && is_failure(error)
            }
        }
    }
}

/// True if the server refuses streams.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::WatchStartFailed(kube::Error::Api(status))
            if matches!(status.code, 400 | 422) || status.message.contains(STREAMED)
    )
}

/// True if the server ended a stream for another reason than load (429) or age (410).
fn is_failure(error: &Error) -> bool {
    matches!(error, Error::WatchError(status) if !matches!(status.code, 410 | 429))
}

/// Drops `resourceVersion=0` from requests for streams, so that a stream is as new as its request,
/// like a list. An older state could bring back a removed address.
pub(super) fn newest<B>(mut request: Request<B>) -> Request<B> {
    if let Some(uri) = without_version(request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

fn without_version(uri: &Uri) -> Option<Uri> {
    let pairs: Vec<&str> = uri.query()?.split('&').collect();
    let is_streamed = |pair: &&str| pair.split_once('=') == Some((STREAMED, "true"));
    pairs.iter().find(|pair| is_streamed(pair))?;
    let others = pairs
        .into_iter()
        .filter(|pair| *pair != "resourceVersion=0");
    let others: Vec<_> = others.collect();
    let path: PathAndQuery = format!("{}?{}", uri.path(), others.join("&"))
        .parse()
        .ok()?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod played;
#[cfg(test)]
pub(super) use self::played::{Answer, Played, added, end};
#[cfg(test)]
mod tests;
