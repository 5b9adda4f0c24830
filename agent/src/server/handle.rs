//! Commands to the one task that owns the node's state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use api::Tuple;
use api::ids::PodRef;
use api::ids::{MacAddr, Owner};
use api::types::OwnedObject;
use api::types::Refused;
use api::types::{
    Addresses, Attachment, EndpointCheck, EndpointStatus, EniStatus, Explanation, FlowFilter,
    GcRequest, GcResult, Leased, MasqueradeStatus, Metric, NatFlows, NatFlushed, NatStats,
    PoolStatus, Status,
};
use api::{ApiError, ErrorCode};
use ipam::Family;
use tokio::sync::{mpsc, oneshot};

use super::durations::Durations;
use super::validate::{AddressRequest, EndpointRequest};
use crate::server::MetricsSnapshot;

/// Where the answer to a command goes.
pub type Reply<T> = oneshot::Sender<Result<T, ApiError>>;

/// The commands of the agent.
#[derive(Debug)]
pub enum Command {
    /// Attach a pod; the answer comes when its network works.
    AddEndpoint(EndpointRequest, Reply<Attachment>),
    /// Take a pod's attachment away. An unknown owner is success.
    DeleteEndpoint(Owner, Reply<()>),
    /// The state of one endpoint, by a new observation of the kernel.
    CheckEndpoint(Owner, Reply<EndpointCheck>),
    /// Take away what a container runtime does not know any more.
    Collect(GcRequest, Reply<GcResult>),
    /// About addresses.
    Addresses(AddressCommand),
    /// About the agent's own addresses.
    Ingress(IngressCommand),
    /// A pod's object is deleted: it is not tried again. Nothing is answered.
    PodGone(PodRef),
    /// The network cards of the instance's ENIs, by MAC. Nothing is answered.
    Cards(BTreeMap<MacAddr, u32>),
    /// Problems that no restart of the agent would cure: missing pins.
    Alive(Reply<Vec<String>>),
    /// True if the node takes pods, as far as addresses are left.
    Ready(Reply<()>),
    /// The endpoints.
    Endpoints(Reply<Vec<EndpointStatus>>),
    /// The ENIs.
    Enis(Reply<Vec<EniStatus>>),
    /// Our objects in the kernel, each with its state.
    Objects(Reply<Vec<OwnedObject>>),
    /// The state of the whole.
    Status(Reply<Box<Status>>),
    /// The inputs of the masquerade decision.
    Masquerade(Reply<Box<MasqueradeStatus>>),
    /// The fate of a packet, by the live maps.
    Explain(Tuple, Reply<Explanation>),
    /// The datapath's counters.
    Metrics(Reply<Vec<Metric>>),
    /// Everything that is counted.
    MetricsSnapshot(Reply<Box<MetricsSnapshot>>),
    /// Entries of documents and objects that are not used.
    Refused(Reply<Vec<Refused>>),
    /// The rules of netfilter that packets of the direct path do not meet.
    BypassedRules(Reply<Vec<String>>),
    /// The pods whose open connections connection tracking calls INVALID, each with the remedy.
    CutOffPods(Reply<Vec<(PodRef, String)>>),
    /// The shortage of conntrack entries, if there is one, with the pod that has the most.
    ConntrackShortage(Reply<Vec<String>>),
    /// Pools without an address left, each with what to do; refused while that is not known.
    Exhausted(Reply<Vec<String>>),
    /// The flows that a filter takes.
    NatFlows(FlowFilter, Reply<NatFlows>),
    /// Remove the flows that a filter takes.
    NatFlush(FlowFilter, Reply<NatFlushed>),
    /// Statistics of translation.
    NatStats(Reply<Box<NatStats>>),
}

/// The commands about addresses.
#[derive(Debug)]
pub enum AddressCommand {
    /// Give addresses to an owner that has no endpoint of ours.
    Lease(AddressRequest, Reply<Leased>),
    /// The owner lives: its addresses expire no more.
    Claim(Owner, Reply<()>),
    /// Take an owner's addresses back. None are success.
    Release(Owner, Reply<()>),
    /// The owners of all addresses.
    List(Reply<Addresses>),
    /// The pools.
    Pools(Reply<Vec<PoolStatus>>),
}

/// Commands about the agent's own addresses.
#[derive(Debug)]
pub enum IngressCommand {
    /// The node's name.
    Name(Reply<String>),
    /// The owners of what is in use.
    Owners(Reply<Vec<Owner>>),
    /// Allocate an address of each family for an owner; what it has comes again.
    Allocate(Owner, BTreeSet<Family>, Reply<BTreeSet<IpAddr>>),
    /// Use these addresses of an owner, and no others. Repeated, it changes nothing.
    Take(Owner, BTreeSet<IpAddr>, Reply<()>),
    /// End the use of an owner's addresses.
    Leave(Owner, Reply<()>),
    /// The problems.
    Problems(Reply<Vec<String>>),
}

/// A handle for queries of the agent.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    patience: Duration,
    durations: Durations,
}

impl Handle {
    /// Commands that may wait before callers are held up.
    pub const QUEUE: usize = 64;
    /// The time that a caller waits for its answer by default. The kernel needs milliseconds for
    /// one command.
    pub const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

    /// A handle, and the end at which its commands arrive.
    #[must_use]
    pub fn new(patience: Duration) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel(Self::QUEUE);
        let handle = Self {
            commands,
            patience,
            durations: Durations::default(),
        };
        (handle, receiver)
    }

    /// Durations of requests, which all clones of the handle share.
    pub(super) fn durations(&self) -> &Durations {
        &self.durations
    }

    /// Sends a command that has no answer. An agent that is stopping needs none.
    pub async fn tell(&self, command: Command) {
        self.commands.send(command).await.ok();
    }

    /// True if the agent takes no commands any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// The agent's answer; [`ErrorCode::NotReady`] when it is stopping or does not answer.
    pub async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, ApiError> {
        let stopping = || {
            ApiError::new(
                ErrorCode::NotReady,
                "the agent is stopping: ask again later",
            )
        };
        let (reply, answer) = oneshot::channel();
        let exchange = async {
            self.commands
                .send(command(reply))
                .await
                .map_err(|_closed| stopping())?;
            answer.await.map_err(|_closed| stopping())?
        };
        tokio::time::timeout(self.patience, exchange)
            .await
            .map_err(|_elapsed| {
                ApiError::new(
                    ErrorCode::NotReady,
                    format!("no answer within {:?}: the agent is busy", self.patience),
                )
            })?
    }
}
