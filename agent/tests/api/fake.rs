//! A server with a fake in the agent's place, and a caller that can misbehave.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use api::Tuple;
use api::ids::{EndpointId, EniNumber, Owner};
use api::types::{
    Addresses, Allocation, Attachment, EniRef, FlowFilter, GcRequest, GcResult, Leased, NatFlows,
    NatFlushed,
};
use api::types::{Explanation, Verdict};
use api::{ApiError, ErrorCode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;
use towpath::server::{AddressCommand, Command, EndpointRequest, Handle, Server, ServerLimits};

/// A bound that no healthy answer comes near.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) const LIMITS: ServerLimits = ServerLimits {
    connections: 4,
    request: Duration::from_millis(400),
    connection: Duration::from_secs(5),
};

/// A server with a fake agent, in a thread of its own.
pub(crate) struct Fake {
    _end: End,
    pub(crate) folder: TempDir,
    /// Requests that reached the agent.
    pub(crate) requests: mpsc::Receiver<EndpointRequest>,
    pub(crate) deleted: mpsc::Receiver<Owner>,
}

/// Ends the server when it is dropped.
struct End {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Fake {
    pub(crate) fn start(limits: ServerLimits) -> Self {
        let (requests_in, requests) = mpsc::channel();
        let (deleted_in, deleted) = mpsc::channel();
        let fake = Self::answering(limits, move |command| {
            answer(command, &requests_in, &deleted_in);
        });
        Self {
            requests,
            deleted,
            ..fake
        }
    }

    /// Starts a server whose agent gives these answers.
    pub(crate) fn answering(
        limits: ServerLimits,
        mut answer: impl FnMut(Command) + Send + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let server = Server::bind(&socket, limits).unwrap();
                let (handle, mut commands) = Handle::new(Duration::from_secs(2));
                ready.send(()).unwrap();
                let agent = async {
                    while let Some(command) = commands.recv().await {
                        answer(command);
                    }
                };
                tokio::select! {
                    () = server.serve(handle) => {}
                    () = agent => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv_timeout(DEADLINE).unwrap();
        Self {
            folder,
            _end: End {
                stop: Some(stop),
                thread: Some(thread),
            },
            requests: mpsc::channel().1,
            deleted: mpsc::channel().1,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Sends bytes as they are, and reads until the server closes.
    pub(crate) fn raw(&self, request: &[u8]) -> Response {
        let mut stream = self.connect();
        // The server may answer and close before it has read everything.
        stream.write_all(request).ok();
        Response::read(&mut stream)
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Response {
        let length = body.len();
        self.raw(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        )
    }

    /// The agent got no request.
    pub(crate) fn assert_untouched(&self) {
        assert!(self.requests.try_recv().is_err(), "the agent got a request");
        assert!(self.deleted.try_recv().is_err(), "the agent got a request");
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// The answer to an endpoint that is added, unless its container is named `busy`.
fn added(request: &EndpointRequest) -> Result<Attachment, ApiError> {
    if request.owner.container_id == "busy" {
        let error = ApiError::new(ErrorCode::EniNotReady, "ENI 1 is not ready: no device");
        return Err(error.at("addresses"));
    }
    Ok(attachment(request))
}

/// An explanation that repeats the connection that was asked about.
fn explanation(tuple: Tuple) -> Explanation {
    let Tuple {
        protocol,
        source,
        destination,
    } = tuple;
    Explanation {
        steps: Vec::new(),
        verdict: Verdict::Stack,
        why: format!("{protocol} {source} {destination}"),
        eni: None,
        snat: None,
        port: None,
        then: None,
    }
}

/// The result of a collection that removes each valid endpoint.
fn collected(request: GcRequest) -> GcResult {
    GcResult {
        removed: request.valid,
        kept: Vec::new(),
        agent: Vec::new(),
    }
}

/// Answers as the fake agent, which takes every endpoint except one whose container is named
/// `busy`.
pub(crate) fn answer(
    command: Command,
    requests: &mpsc::Sender<EndpointRequest>,
    deleted: &mpsc::Sender<Owner>,
) {
    match command {
        Command::AddEndpoint(request, reply) => {
            let answer = added(&request);
            requests.send(request).unwrap();
            reply.send(answer).ok();
        }
        Command::DeleteEndpoint(owner, reply) => {
            deleted.send(owner).unwrap();
            reply.send(Ok(())).ok();
        }
        Command::PodGone(_unasked) => {}
        Command::Cards(_unasked) => {}
        Command::Endpoints(reply) => drop(reply.send(Ok(Vec::new()))),
        Command::Enis(reply) => drop(reply.send(Ok(Vec::new()))),
        Command::Objects(reply) => drop(reply.send(Ok(Vec::new()))),
        // No answer is sent, as if the agent had ended.
        Command::Status(reply) => drop(reply),
        // As for the status.
        Command::Masquerade(reply) => drop(reply),
        Command::Explain(tuple, reply) => drop(reply.send(Ok(explanation(tuple)))),
        Command::CheckEndpoint(owner, reply) => {
            let message = format!("{owner} has no endpoint");
            let error = ApiError::new(ErrorCode::UnknownEndpoint, message);
            reply.send(Err(error)).ok();
        }
        Command::Collect(request, reply) => drop(reply.send(Ok(collected(request)))),
        Command::Ready(reply) => {
            let error = ApiError::new(ErrorCode::NotReady, "no ENI is ready");
            reply.send(Err(error)).ok();
        }
        Command::Addresses(command) => addresses(command),
        Command::MetricsSnapshot(reply) => drop(reply.send(Ok(Box::default()))),
        Command::Refused(reply) => drop(reply.send(Ok(Vec::new()))),
        Command::Alive(reply)
        | Command::Exhausted(reply)
        | Command::BypassedRules(reply)
        | Command::ConntrackShortage(reply) => {
            drop(reply.send(Ok(Vec::new())));
        }
        Command::Metrics(reply) => drop(reply.send(Ok(Vec::new()))),
        Command::CutOffPods(reply) => drop(reply.send(Ok(Vec::new()))),
        Command::NatFlows(filter, reply) => drop(reply.send(Ok(flows(&filter)))),
        Command::NatFlush(filter, reply) => {
            let removed = flows(&filter).total;
            reply.send(Ok(NatFlushed { removed })).ok();
        }
        Command::NatStats(reply) => drop(reply.send(Ok(Box::default()))),
        // No request of the API leads to one.
        Command::Ingress(_) => {}
    }
}

/// Answers of a node without addresses.
fn addresses(command: AddressCommand) {
    match command {
        AddressCommand::Lease(request, reply) => {
            let leased = Leased {
                owner: request.owner,
                addresses: Vec::new(),
                expires_seconds: Some(600),
            };
            reply.send(Ok(leased)).ok();
        }
        AddressCommand::Claim(owner, reply) => {
            let error = ApiError::new(ErrorCode::UnknownLease, owner.to_string());
            reply.send(Err(error)).ok();
        }
        AddressCommand::Release(_, reply) => drop(reply.send(Ok(()))),
        AddressCommand::List(reply) => drop(reply.send(Ok(Addresses::default()))),
        AddressCommand::Pools(reply) => drop(reply.send(Ok(Vec::new()))),
    }
}

/// As many flows as the filter has fields.
fn flows(filter: &FlowFilter) -> NatFlows {
    let fields = [
        filter.pod.is_some(),
        filter.remote.is_some(),
        filter.protocol.is_some(),
        filter.all,
    ];
    NatFlows {
        flows: Vec::new(),
        total: fields.into_iter().map(u64::from).sum(),
    }
}

pub(crate) fn attachment(request: &EndpointRequest) -> Attachment {
    let id = EndpointId::of(&request.owner);
    let of = |address: &std::net::IpAddr| Allocation {
        address: *address,
        eni: Some(EniRef {
            number: EniNumber(1),
            id: "eni-0b".into(),
            mac: "0a:11:22:33:44:55".parse().unwrap(),
        }),
        gateway: Some("10.0.1.1".parse().unwrap()),
        subnet: Some("10.0.1.0/24".parse().unwrap()),
        vpc_cidrs: vec!["10.0.0.0/16".parse().unwrap()],
        pod_gateway: "169.254.1.1".parse().unwrap(),
        pool: Some("default".into()),
        policy: None,
        skip_masquerade: Some(false),
    };
    Attachment {
        owner: request.owner.clone(),
        netns: request.netns.clone(),
        host_device: id.device(),
        host_mac: id.host_mac(),
        pod_mac: id.pod_mac(),
        mtu: 9001,
        addresses: request.addresses.iter().map(of).collect(),
    }
}

/// An answer as it came over the wire.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Response {
    pub(crate) fn read(stream: &mut UnixStream) -> Self {
        let mut bytes = Vec::new();
        // A reset after the answer means that the server reads no more.
        stream.read_to_end(&mut bytes).ok();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {text:?}"));
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(body.ends_with('\n'), "{body:?}");
        Self {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            body: serde_json::from_str(body).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn is_error(&self, status: u16, code: &str, field: Option<&str>) {
        let error = &self.body["error"];
        assert_eq!(
            (self.status, error["code"].as_str(), error["field"].as_str()),
            (status, Some(code), field),
            "{self:?}"
        );
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
}
