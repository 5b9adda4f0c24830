//! An API server that answers as a test says.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// The body of an answer.
type Lines = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// An answer.
pub(crate) enum Answer {
    /// A status code, and a body.
    Whole(u16, Value),
    /// A watch's events, after which it stays open.
    Open(Vec<Value>),
    /// A watch's events, after which it ends.
    Ended(Vec<Value>),
}

impl Answer {
    /// A refusal.
    pub(crate) fn refusal(code: u16, message: &str) -> Self {
        Self::Whole(code, Self::status(code, message))
    }

    /// A refusal, as the API server words it.
    pub(crate) fn status(code: u16, message: &str) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "", "code": code, "details": {"retryAfterSeconds": 7}
        })
    }

    /// A list of objects.
    pub(crate) fn list(names: &[&str]) -> Self {
        let items: Vec<_> = names.iter().map(|name| object(name)).collect();
        let metadata = json!({"resourceVersion": "5"});
        let list =
            json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items});
        Self::Whole(200, list)
    }

    fn response(self) -> Response<Lines> {
        let (code, values, is_open) = match self {
            Self::Whole(code, value) => (code, vec![value], false),
            Self::Open(values) => (200, values, true),
            Self::Ended(values) => (200, values, false),
        };
        let frames = values.into_iter().map(|value| {
            let line = Bytes::from(format!("{value}\n"));
            Ok::<_, Infallible>(Frame::data(line))
        });
        let frames = stream::iter(frames).chain(if is_open {
            stream::pending().left_stream()
        } else {
            stream::empty().right_stream()
        });
        let body = StreamBody::new(frames.boxed());
        Response::builder().status(code).body(body).unwrap()
    }
}

fn object(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "resourceVersion": "3"}
    })
}

/// An object that a watch brings.
pub(crate) fn added(name: &str) -> Value {
    json!({"type": "ADDED", "object": object(name)})
}

/// A watch says that all objects have come.
pub(crate) fn end() -> Value {
    let metadata =
        json!({"resourceVersion": "4", "annotations": {"k8s.io/initial-events-end": "true"}});
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
    json!({"type": "BOOKMARK", "object": object})
}

/// The server.
pub(crate) struct Played {
    pub(crate) client: Client,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Played {
    /// One that gives these answers, and then none any more.
    pub(crate) fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let answers: VecDeque<_> = answers.into_iter().collect();
        let answers = Arc::new(Mutex::new(answers));
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            noted.lock().unwrap().push(request.uri().to_string());
            let answer = answers.lock().unwrap().pop_front();
            async move {
                match answer {
                    Some(answer) => Ok::<_, Infallible>(answer.response()),
                    None => std::future::pending().await,
                }
            }
        });
        Self {
            client: Client::new(service, "default"),
            requests,
        }
    }

    /// Requests that it got: `true` stands for a stream.
    pub(crate) fn requests(&self) -> Vec<(String, bool)> {
        let requests = self.requests.lock().unwrap();
        let requests = requests.iter().map(|uri| {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            (path.to_owned(), query.contains("sendInitialEvents=true"))
        });
        requests.collect()
    }

    /// The requests in their order: true for a stream.
    pub(crate) fn streams(&self) -> Vec<bool> {
        self.requests().into_iter().map(|(_, is)| is).collect()
    }
}
