//! Commands of the socket.

mod addresses;
mod endpoint_leases;
mod finish;
mod gc;
pub(crate) mod sweeper;

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::ids::{EndpointId, Owner};
use api::types::{Attachment, Status};
use api::{ApiError, ErrorCode};
use loader::intent::Endpoint;
use loader::kernel::Endpoints;
use loader::netlink::netns_at;
use tokio::sync::mpsc;

use super::admission::Decision;
use crate::actor::Actor;
use crate::fault_points::{self, Point};
use crate::host::kernel::Host;
use crate::host::netns;
use crate::host::netns::Netns;
use crate::server::{Command, EndpointRequest, Reply};

/// An endpoint that waits for the pass that makes it.
#[derive(Debug)]
pub(crate) struct Admitted {
    endpoint: Endpoint,
    /// True if it is forgotten when it cannot be made.
    new: bool,
}

/// Objects to remove because their owner was forgotten.
pub(crate) enum Forgotten {
    /// Nothing: the owner had none.
    Nothing,
    /// An endpoint with its addresses.
    Endpoint(EndpointId, BTreeSet<IpAddr>),
}

impl<K: Host> Actor<K> {
    /// Answers a command, and the next ones that are served together with it.
    pub(crate) async fn serve(&mut self, command: Command, more: &mut mpsc::Receiver<Command>) {
        let mut next = Some(command);
        while let Some(command) = next {
            next = self.command(command, more).await;
        }
    }

    /// Answers a command; the one that it took from the queue and did not answer.
    async fn command(
        &mut self,
        command: Command,
        more: &mut mpsc::Receiver<Command>,
    ) -> Option<Command> {
        // A caller that went away needs no answer.
        match command {
            Command::AddEndpoint(request, reply) => {
                return self.add_alike((request, reply), more).await;
            }
            Command::DeleteEndpoint(owner, reply) => {
                return self.delete_alike((owner, reply), more).await;
            }
            Command::CheckEndpoint(owner, reply) => {
                reply.send(self.check_endpoint(&owner).await).ok();
            }
            Command::Collect(request, reply) => drop(reply.send(Ok(self.collect(request).await))),
            Command::Addresses(command) => self.address_command(command).await,
            Command::Ingress(command) => self.ingress_command(command).await,
            Command::PodGone(pod) => self.addresses.forget_pod(&pod),
            Command::Cards(cards) => {
                self.documents.numbering.take_cards(cards);
                self.take_node();
            }
            Command::Alive(reply) => drop(reply.send(Ok(self.unpinned()))),
            Command::Ready(reply) => drop(reply.send(self.ready())),
            Command::Endpoints(reply) => drop(reply.send(Ok(self.endpoints()))),
            Command::Enis(reply) => drop(reply.send(Ok(self.enis()))),
            Command::Objects(reply) => {
                self.update().await;
                reply.send(Ok(self.passes.last.view.objects.list())).ok();
            }
            Command::Status(reply) => drop(reply.send(Ok(self.updated_status().await))),
            Command::Masquerade(reply) => drop(reply.send(Ok(Box::new(self.masquerade())))),
            Command::Explain(tuple, reply) => self.explain(tuple, reply),
            Command::Metrics(reply) => drop(reply.send(self.metrics())),
            Command::MetricsSnapshot(reply) => drop(reply.send(self.figures().map(Box::new))),
            Command::Exhausted(reply) => drop(reply.send(self.addresses.exhausted())),
            Command::Refused(reply) => drop(reply.send(Ok(self.refused()))),
            Command::CutOffPods(reply) => drop(reply.send(Ok(self.cut_off_pods()))),
            Command::BypassedRules(reply) => drop(reply.send(Ok(self.bypassed_rules()))),
            Command::ConntrackShortage(reply) => {
                let shortage = self.conntrack_shortage();
                drop(reply.send(Ok(shortage.into_iter().collect())));
            }
            // The garbage-collection thread answers these itself, since a scan of all flows takes
            // time.
            Command::NatFlows(filter, reply) => {
                self.observers.nat.list(filter, sweeper::answer(reply));
            }
            Command::NatFlush(filter, reply) => {
                tracing::info!(?filter, "translated flows flushed");
                self.observers.nat.flush(filter, sweeper::answer(reply));
            }
            Command::NatStats(reply) => self.nat_stats(reply),
        }
        None
    }

    /// The programs that have lost their pin.
    fn unpinned(&self) -> Vec<String> {
        let unpinned = self.reconciler.kernel().unpinned();
        unpinned.map(str::to_owned).into_iter().collect()
    }

    async fn updated_status(&mut self) -> Box<Status> {
        self.update().await;
        Box::new(self.status().await)
    }

    /// Adds an endpoint and those of the requests that directly follow. Pods come in bursts, and
    /// one pass makes many.
    async fn add_alike(
        &mut self,
        first: (EndpointRequest, Reply<Attachment>),
        more: &mut mpsc::Receiver<Command>,
    ) -> Option<Command> {
        let (requests, next) = alike(first, more, |command| match command {
            Command::AddEndpoint(request, reply) => Ok((request, reply)),
            other => Err(other),
        });
        self.add_and_answer(requests).await;
        next
    }

    /// Deletes an endpoint and those of the requests that directly follow: they go in bursts as
    /// well.
    async fn delete_alike(
        &mut self,
        first: (Owner, Reply<()>),
        more: &mut mpsc::Receiver<Command>,
    ) -> Option<Command> {
        let (requests, next) = alike(first, more, |command| match command {
            Command::DeleteEndpoint(owner, reply) => Ok((owner, reply)),
            other => Err(other),
        });
        self.delete_and_answer(requests).await;
        next
    }

    async fn add_and_answer(&mut self, requests: Vec<(EndpointRequest, Reply<Attachment>)>) {
        let (requests, replies): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let owners: Vec<_> = requests.iter().map(|r| r.owner.clone()).collect();
        let answers = self.add(requests).await;
        for ((owner, reply), answer) in owners.iter().zip(replies).zip(answers) {
            match &answer {
                Ok(_) => tracing::info!(%owner, "endpoint added"),
                Err(error) => tracing::warn!(%owner, %error, "endpoint not added"),
            }
            reply.send(answer).ok();
        }
    }

    async fn delete_and_answer(&mut self, requests: Vec<(Owner, Reply<()>)>) {
        let (owners, replies): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let answers = self.delete(&owners).await;
        for ((owner, reply), answer) in owners.iter().zip(replies).zip(answers) {
            match &answer {
                Ok(()) => tracing::info!(%owner, "endpoint deleted"),
                Err(error) => tracing::warn!(%owner, %error, "endpoint not deleted"),
            }
            reply.send(answer).ok();
        }
    }

    /// Adds endpoints; the answers in the order of the requests.
    pub(crate) async fn add(
        &mut self,
        requests: Vec<EndpointRequest>,
    ) -> Vec<Result<Attachment, ApiError>> {
        if self.documents.source.value.is_some() && self.take_orphans().await {
            let owners = requests.iter().map(|request| &request.owner);
            let is_unknown = |owner: &&Owner| {
                let id = EndpointId::of(owner);
                let endpoint = self.intent.endpoints.get(&id);
                self.records.corrupt.contains_key(&id) || endpoint.is_some_and(Endpoint::is_orphan)
            };
            let unreadable: Vec<Owner> = owners.filter(is_unknown).cloned().collect();
            if !unreadable.is_empty() {
                // The addresses inside the pod are unknown, so its devices are recreated.
                for answer in self.delete(&unreadable).await {
                    if let Err(error) = answer {
                        tracing::error!("cannot delete an unreadable record: {error}");
                    }
                }
            }
            self.look().await;
            self.update_addresses();
        }
        let admitted = requests.into_iter().map(|r| self.admit(r)).collect();
        let answers = self.finish(admitted).await;
        // If nothing had to be made there was no pass.
        self.passes.seen = None;
        answers
    }

    /// Observes the kernel, because its current state decides requests: a device of the host may
    /// have a new address since the last pass.
    pub(crate) async fn look(&mut self) {
        if self.reconciler.can_pass_endpoints(&self.intent) {
            if let Err(error) = self.reconciler.kernel_mut().observe_addresses().await {
                tracing::warn!("the addresses of the host could not be read: {error:#}");
            }
        } else if self.reconciler.kernel().facts().is_none() {
            // Nor is there anything yet to say which ENI is ready.
            self.run_pass().await;
        } else {
            match self.reconciler.kernel_mut().observe().await {
                Ok(observed) => self.passes.seen = Some(observed),
                Err(error) => tracing::warn!("the kernel could not be read: {error:#}"),
            }
        }
    }

    /// Admits a request. One that is refused has no more addresses than before.
    fn admit(&mut self, request: EndpointRequest) -> Result<Admitted, ApiError> {
        let owner = request.owner.clone();
        let pod = request.ask.pod.clone();
        let had = self.holds(&owner);
        let admitted = self.decide(request);
        if let Err(error) = &admitted
            && !had
        {
            self.addresses.take_back(&owner, pod.as_ref(), error.retry);
        }
        admitted
    }

    fn decide(&mut self, request: EndpointRequest) -> Result<Admitted, ApiError> {
        if self.documents.source.value.is_none() {
            let error = self.documents.source.error.as_deref();
            return Err(ApiError::new(
                ErrorCode::NotReady,
                format!(
                    "no valid node document: {}",
                    error.unwrap_or("it was not read yet")
                ),
            ));
        }
        self.check_first(&request.owner)?;
        let request = self.with_addresses(request)?;
        let ask = request.ask.clone();
        let admission = self.admission()?;
        match admission.decide(request)? {
            Decision::Existing(endpoint) => {
                netns::check_same(&endpoint)?;
                Ok(Admitted {
                    endpoint,
                    new: false,
                })
            }
            Decision::New(mut endpoint) => {
                check_netns(&endpoint)?;
                endpoint.about.namespace = netns_at(&endpoint.netns).ok();
                self.take_device_name(&endpoint)?;
                self.record_with_leases(endpoint, &ask)
            }
        }
    }

    /// Checks that the container has no endpoint by another interface: both would want the pod's
    /// default route.
    fn check_first(&self, owner: &Owner) -> Result<(), ApiError> {
        let mut others = self.intent.endpoints.values().map(|one| &one.owner);
        let is_other = |other: &&Owner| {
            other.container_id == owner.container_id && other.interface != owner.interface
        };
        let Some(other) = others.find(is_other) else {
            return Ok(());
        };
        let message = format!(
            "{} has {} already; allowed: one interface of this plugin a pod. Attach others by another \
             plugin",
            other.container_id, other.interface
        );
        Err(ApiError::new(ErrorCode::SecondInterface, message).at("owner.interface"))
    }

    /// Takes the name of a new endpoint's device from the endpoints of the pod's earlier sandboxes.
    pub(crate) fn take_device_name(&mut self, new: &Endpoint) -> Result<(), ApiError> {
        if new.about.device.is_none() {
            return Ok(());
        }
        let endpoints = self.intent.endpoints.values_mut();
        for earlier in endpoints.filter(|one| one.about.device == new.about.device) {
            earlier.about.device = None;
            self.records
                .store
                .put(earlier)
                .map_err(|error| not_written(&error))?;
        }
        Ok(())
    }

    /// Puts a new endpoint on disk and into the intent.
    pub(crate) fn record(&mut self, endpoint: Endpoint) -> Result<Admitted, ApiError> {
        let id = endpoint.id();
        let put = self.records.store.put(&endpoint);
        put.map_err(|error| not_written(&error))?;
        fault_points::reach(Point::EndpointAddRecorded);
        self.intent.endpoints.insert(id, endpoint.clone());
        self.records.corrupt.remove(&id);
        Ok(Admitted {
            endpoint,
            new: true,
        })
    }

    /// Deletes endpoints; the answers in the order of their owners. An unknown owner is success.
    pub(crate) async fn delete(&mut self, owners: &[Owner]) -> Vec<Result<(), ApiError>> {
        self.take_orphans().await;
        let now = self.addresses.announce_release(owners);
        let mut forgotten = Endpoints::new();
        let answers = owners.iter().map(|owner| {
            match self.forget_owner(owner)? {
                Forgotten::Nothing => {}
                Forgotten::Endpoint(id, addresses) => drop(forgotten.insert(id, addresses)),
            }
            self.addresses.release(owner, now);
            Ok(())
        });
        let answers = answers.collect();
        if !forgotten.is_empty() {
            self.run_endpoints(forgotten).await;
        }
        // Without a cooldown it is over with the last of them in the kernel.
        self.update_addresses();
        answers
    }

    /// Forgets an owner's endpoint.
    pub(crate) fn forget_owner(&mut self, owner: &Owner) -> Result<Forgotten, ApiError> {
        let id = EndpointId::of(owner);
        let forgotten = match self.intent.endpoints.get(&id) {
            // Another owner's that happens to have the same id stays.
            Some(endpoint) if endpoint.owner != *owner && !endpoint.is_orphan() => {
                return Ok(Forgotten::Nothing);
            }
            Some(endpoint) => Forgotten::Endpoint(id, endpoint.addresses.clone()),
            // The record alone is left of it.
            None if self.records.has_orphans && self.records.corrupt.contains_key(&id) => {
                Forgotten::Endpoint(id, BTreeSet::new())
            }
            None if self.records.has_orphans => return Ok(Forgotten::Nothing),
            None => {
                let message = "the kernel could not be read; see the log";
                return Err(ApiError::new(ErrorCode::NotReady, message));
            }
        };
        self.forget(id).map_err(|error| not_written(&error))?;
        fault_points::reach(Point::EndpointDelRecorded);
        self.records.corrupt.remove(&id);
        Ok(forgotten)
    }
}

/// Checks that the namespace is one that a pod can have.
fn check_netns(endpoint: &Endpoint) -> Result<(), ApiError> {
    let path = endpoint.netns.display();
    let message = match Netns::at(&endpoint.netns) {
        Netns::Pod => return Ok(()),
        Netns::Host => format!("{path} is the host's own network namespace"),
        Netns::Other => format!("{path} is not a network namespace"),
        Netns::Absent => format!("{path} does not exist"),
        Netns::Unknown(error) => format!("cannot inspect {path}: {error}"),
    };
    Err(ApiError::new(ErrorCode::InvalidField, message).at("netns"))
}

fn not_written(error: &anyhow::Error) -> ApiError {
    ApiError::new(ErrorCode::StateNotWritten, format!("{error:#}"))
}

/// A command and those of its kind that directly follow it; and the next one after these, if there
/// is one.
fn alike<T>(
    first: T,
    more: &mut mpsc::Receiver<Command>,
    take: impl Fn(Command) -> Result<T, Command>,
) -> (Vec<T>, Option<Command>) {
    let mut all = vec![first];
    while let Ok(command) = more.try_recv() {
        match take(command) {
            Ok(one) => all.push(one),
            Err(other) => return (all, Some(other)),
        }
    }
    (all, None)
}
