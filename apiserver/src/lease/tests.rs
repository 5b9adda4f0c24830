//! Candidates at a played API server, by the real clock.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

const TIMING: Timing = Timing {
    duration: Duration::from_secs(1),
    lead: Duration::from_millis(600),
    every: Duration::from_millis(200),
    retry: Duration::from_millis(50),
};
/// Longer than any takeover, on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// An API server that has one Lease.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Content>>);

#[derive(Default)]
struct Content {
    lease: Option<Value>,
    writes: u64,
    /// Each request is refused with this code.
    refuses: Option<u16>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (code, answer) = server.answer(&head.method, &body);
                let body = Full::from(Bytes::from(answer.to_string()));
                let answer = Response::builder().status(code).body(body).unwrap();
                Ok::<_, Infallible>(answer)
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, body: &[u8]) -> (u16, Value) {
        let mut content = self.0.lock().unwrap();
        let refusal = |code: u16| {
            let reason = match code {
                404 => "NotFound",
                409 => "Conflict",
                _ => "",
            };
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "refused", "reason": reason, "code": code,
            });
            (code, status)
        };
        if let Some(code) = content.refuses {
            return refusal(code);
        }
        let version = content.writes.to_string();
        let new: Value = serde_json::from_slice(body).unwrap_or_default();
        let lease = match (method, &content.lease) {
            (&Method::GET, None) => return refusal(404),
            (&Method::GET, Some(lease)) => return (200, lease.clone()),
            (&Method::POST, None) => new,
            (&Method::PATCH, Some(_)) if new["metadata"]["resourceVersion"] != version => {
                return refusal(409);
            }
            (&Method::PATCH, Some(lease)) => {
                let mut lease = lease.clone();
                for (key, value) in new["spec"].as_object().unwrap() {
                    lease["spec"][key] = value.clone();
                }
                lease
            }
            _ => return refusal(409),
        };
        (200, content.put(lease))
    }

    fn lease(&self) -> Value {
        self.0.lock().unwrap().lease.clone().unwrap_or_default()
    }
}

impl Content {
    fn put(&mut self, mut lease: Value) -> Value {
        self.writes += 1;
        lease["metadata"]["resourceVersion"] = self.writes.to_string().into();
        lease["metadata"]["uid"] = "u".into();
        self.lease.insert(lease).clone()
    }
}

struct Running {
    standing: watch::Receiver<Standing>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<nix::Result<()>>,
}

impl Running {
    fn start(server: &Server, identity: &str) -> Self {
        let leases = objects::leases(&server.client(), "kube-system");
        let (candidate, standing) =
            Candidate::new(leases, "towpath-operator", identity.to_owned(), TIMING);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(candidate.run(async move {
            stopped.await.ok();
        }));
        Self {
            standing,
            stop,
            task,
        }
    }

    async fn see(&mut self, is_so: impl FnMut(&Standing) -> bool) -> Standing {
        let seen = timeout(LONG, self.standing.wait_for(is_so)).await;
        seen.expect("it comes in time").unwrap().clone()
    }

    async fn lead(&mut self) -> Standing {
        self.see(|standing| standing.left(now().unwrap()) > Duration::ZERO)
            .await
    }
}

#[tokio::test]
async fn one_leads_and_the_next_follows_when_it_is_released() {
    let server = Server::default();
    let mut first = Running::start(&server, "first");
    let standing = first.lead().await;
    assert_eq!(standing.holder.as_deref(), Some("first"));
    let mut second = Running::start(&server, "second");
    let waiting = second.see(|standing| standing.holder.is_some()).await;
    assert_eq!(
        (waiting.holder.as_deref(), waiting.term),
        (Some("first"), None)
    );
    // It is renewed, without a break.
    let later =
        first.see(|new| new.term.map(|term| term.until) != standing.term.map(|term| term.until));
    let later = later.await;
    assert_eq!(later.term.unwrap().since, standing.term.unwrap().since);

    first.stop.send(()).unwrap();
    first.task.await.unwrap().unwrap();
    assert_eq!(first.standing.borrow().term, None);
    assert_eq!(second.lead().await.holder.as_deref(), Some("second"));
    let spec = server.lease()["spec"].clone();
    assert_eq!(spec["leaseTransitions"], 2);
    let time = spec["renewTime"].as_str().unwrap();
    assert_eq!(time.len(), "2001-09-09T01:46:40.000000Z".len(), "{time}");
    second.task.abort();
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_and_one_that_gets_no_answer_stops() {
    let server = Server::default();
    let mut first = Running::start(&server, "first");
    first.lead().await;
    first.task.abort();
    let mut second = Running::start(&server, "second");
    second.lead().await;
    assert_eq!(server.lease()["spec"]["holderIdentity"], "second");

    server.0.lock().unwrap().refuses = Some(503);
    let standing = second.see(|standing| standing.trouble.is_some()).await;
    let trouble = standing.trouble.unwrap();
    assert!(trouble.contains("refused with 503"), "{trouble}");
    let until = standing.term.unwrap().until;
    let is_over = timeout(LONG, async {
        while now().unwrap() < until {
            sleep(Duration::from_millis(20)).await;
        }
    });
    is_over.await.unwrap();
    assert_eq!(
        second.standing.borrow().left(now().unwrap()),
        Duration::ZERO
    );
    server.0.lock().unwrap().refuses = None;
    let standing = second.lead().await;
    assert_eq!(standing.trouble, None);
    second.task.abort();
}
