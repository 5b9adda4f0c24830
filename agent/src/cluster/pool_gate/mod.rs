//! Gate that commands pass before they reach the actor.
//!
//! A new pod gets its pool here, because that may need the API server, and the actor never waits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use api::ids::Owner;
use api::types::{Attachment, Leased};
use api::{ApiError, ErrorCode};
use apiserver::events::Events;
use ipam::Family;
use kubernetes::pool::pool_selection::{Candidates, Choice, ChoiceError};
use kubernetes::report::events::Subject;
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use super::Signals;
use super::metadata::Metadatas;
use crate::allocation::adapter as allocation;
use crate::server::{AddressCommand, AddressRequest, AddressSpec, Command, EndpointRequest, Reply};

/// The adds whose pool is being chosen, by owner, each with its number.
pub(super) type Choosing = Arc<Mutex<HashMap<Owner, u64>>>;

/// A request for addresses.
trait Asks: Send + Sync {
    /// Answer to the request.
    type Answer: Send;

    /// Owner of the addresses.
    fn owner(&self) -> &Owner;
    /// Addresses that are requested explicitly.
    fn addresses(&self) -> &BTreeSet<IpAddr>;
    /// Other parameters of the request.
    fn ask(&self) -> &AddressSpec;
    fn ask_mut(&mut self) -> &mut AddressSpec;
    /// Command for the actor.
    fn command(self, reply: Reply<Self::Answer>) -> Command;
}

macro_rules! asks {
    ($request:ty, $answer:ty, $command:expr) => {
        impl Asks for $request {
            type Answer = $answer;

            fn owner(&self) -> &Owner {
                &self.owner
            }

            fn addresses(&self) -> &BTreeSet<IpAddr> {
                &self.addresses
            }

            fn ask(&self) -> &AddressSpec {
                &self.ask
            }

            fn ask_mut(&mut self) -> &mut AddressSpec {
                &mut self.ask
            }

            fn command(self, reply: Reply<Self::Answer>) -> Command {
                $command(self, reply)
            }
        }
    };
}

asks!(EndpointRequest, Attachment, Command::AddEndpoint);
asks!(AddressRequest, Leased, |request, reply| {
    Command::Addresses(AddressCommand::Lease(request, reply))
});

/// The gate.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(super) metadatas: Metadatas,
    /// The pools' objects; nothing before they are known.
    pub(super) candidates: watch::Receiver<Option<Arc<Candidates>>>,
    pub(super) default_pool: String,
    pub(super) families: BTreeSet<Family>,
    pub(super) signals: Arc<Signals>,
    pub(super) events: Events,
    /// Choices in flight; none at first.
    pub(super) choosing: Choosing,
}

/// Reason why a pod gets no addresses.
struct Refusal {
    error: ApiError,
    /// Reason of the event for the pod, if there is one.
    reason: Option<&'static str>,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        let reason = match error.code {
            ErrorCode::PoolUnknown => Some("PoolUnknown"),
            ErrorCode::PoolExhausted => Some("PoolExhausted"),
            ErrorCode::PoolNotReady => Some("PoolNotReady"),
            _ => None,
        };
        Self { error, reason }
    }
}

impl From<ChoiceError> for Refusal {
    fn from(error: ChoiceError) -> Self {
        let reason = match error {
            ChoiceError::Ambiguous { .. } => "PoolAmbiguous",
            ChoiceError::NoMatch { .. } => "PoolUnknown",
            ChoiceError::Restricted { .. } => "PoolRestricted",
        };
        Self {
            error: ApiError::new(ErrorCode::PoolUnknown, error.to_string()),
            reason: Some(reason),
        }
    }
}

impl Gate {
    /// Passes commands through the gate; returns the receiver at its other end.
    pub(crate) fn guard(self, mut commands: mpsc::Receiver<Command>) -> mpsc::Receiver<Command> {
        let (sender, receiver) = mpsc::channel(crate::server::Handle::QUEUE);
        tokio::spawn(async move {
            let mut number = 0;
            while let Some(command) = commands.recv().await {
                number += 1;
                if self.pass(command, number, &sender).await.is_err() {
                    return;
                }
            }
        });
        receiver
    }

    /// Passes a command on.
    ///
    /// # Errors
    /// When the actor is gone.
    async fn pass(
        &self,
        command: Command,
        number: u64,
        actor: &mpsc::Sender<Command>,
    ) -> Result<(), mpsc::error::SendError<Command>> {
        match command {
            Command::AddEndpoint(request, reply) => {
                self.begin(request, reply, number, actor).await;
                Ok(())
            }
            Command::Addresses(AddressCommand::Lease(request, reply)) => {
                self.begin(request, reply, number, actor).await;
                Ok(())
            }
            Command::DeleteEndpoint(owner, reply) => {
                let of = owner.clone();
                self.end(&of, Command::DeleteEndpoint(owner, reply), actor)
                    .await
            }
            Command::Addresses(AddressCommand::Release(owner, reply)) => {
                let of = owner.clone();
                let release = AddressCommand::Release(owner, reply);
                self.end(&of, Command::Addresses(release), actor).await
            }
            other => actor.send(other).await,
        }
    }

    /// Begins to choose the pool of an owner's addresses.
    async fn begin<R: Asks + 'static>(
        &self,
        request: R,
        reply: Reply<R::Answer>,
        number: u64,
        actor: &mpsc::Sender<Command>,
    ) {
        let mut choosing = self.choosing.lock().await;
        choosing.insert(request.owner().clone(), number);
        drop(choosing);
        let (gate, actor) = (self.clone(), actor.clone());
        tokio::spawn(async move { gate.add(request, reply, number, &actor).await });
    }

    /// Passes on a command that releases all that an owner has. An add that is still in the gate
    /// must not follow it.
    async fn end(
        &self,
        owner: &Owner,
        command: Command,
        actor: &mpsc::Sender<Command>,
    ) -> Result<(), mpsc::error::SendError<Command>> {
        let mut choosing = self.choosing.lock().await;
        choosing.remove(owner);
        let sent = actor.send(command).await;
        self.signals.attached.notify_one();
        sent
    }

    async fn add<R: Asks>(
        &self,
        mut request: R,
        reply: Reply<R::Answer>,
        number: u64,
        actor: &mpsc::Sender<Command>,
    ) {
        let chosen = self.choose(&request).await;
        let mut choosing = self.choosing.lock().await;
        if choosing.get(request.owner()) != Some(&number) {
            let message = format!("{} was deleted or added again in between", request.owner());
            reply
                .send(Err(ApiError::new(ErrorCode::NotReady, message)))
                .ok();
            return;
        }
        choosing.remove(request.owner());
        let choices = match chosen {
            Ok(choices) => choices,
            Err(refusal) => {
                self.tell(request.ask(), &refusal);
                reply.send(Err(refusal.error)).ok();
                return;
            }
        };
        let ask = request.ask().clone();
        let pools = choices.iter();
        let pools = pools.map(|(family, choice)| (*family, choice.pool.clone()));
        request.ask_mut().pools.extend(pools);
        let (sender, answer) = oneshot::channel();
        let sent = actor.send(request.command(sender)).await;
        drop(choosing);
        if sent.is_err() {
            return;
        }
        // Without an answer the caller gets the error that the agent stops.
        let Ok(answer) = answer.await else { return };
        let answer = match answer {
            Ok(answer) => {
                self.signals.attached.notify_one();
                Ok(answer)
            }
            Err(error) => {
                self.signals.waiting.notify_one();
                let refusal = Refusal::from(self.explained(error, &choices));
                self.tell(&ask, &refusal);
                Err(refusal.error)
            }
        };
        reply.send(answer).ok();
    }

    /// Records an event with the reason why a pod gets no addresses.
    fn tell(&self, ask: &AddressSpec, refusal: &Refusal) {
        let (Some(pod), Some(reason)) = (&ask.pod, refusal.reason) else {
            return;
        };
        let followed = || Some(self.metadatas.known(pod)?.uid);
        // An event without it is not shown with the pod. That of a static pod is the runtime's.
        let Some(uid) = pod.uid.clone().or_else(followed) else {
            return;
        };
        let subject = Subject {
            api_version: "v1",
            kind: "Pod",
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid,
        };
        let message = refusal.error.message.clone();
        self.events.tell(subject, reason, message);
    }

    /// The pools of a pod, in the families for which the request names none. One that it names has to
    /// admit the pod.
    async fn choose(&self, request: &impl Asks) -> Result<BTreeMap<Family, Choice>, Refusal> {
        let ask = request.ask();
        let Some(pod) = ask.pod.as_ref().filter(|_| request.addresses().is_empty()) else {
            return Ok(BTreeMap::new());
        };
        let not_ready = |error: &dyn fmt::Display| {
            let message = format!("the pool of pod {pod} is not known: {error}");
            ApiError::new(ErrorCode::NotReady, message)
        };
        let candidates = self.candidates.borrow().clone();
        let families = allocation::families(&ask.families, &self.families).into_iter();
        let (named, families): (Vec<_>, Vec<_>) =
            families.partition(|of| ask.pools.contains_key(of));
        let named = named.iter().filter_map(|family| ask.pools.get(family));
        let restricted: BTreeSet<&String> = named
            .filter(|pool| {
                candidates
                    .as_ref()
                    .is_none_or(|all| all.is_restricted(pool))
            })
            .collect();
        if families.is_empty() && restricted.is_empty() {
            return Ok(BTreeMap::new());
        }
        let Some(candidates) = candidates else {
            return Err(not_ready(&"the pools were not read yet").into());
        };
        let known = self.metadatas.of(pod).await;
        let (of_pod, of_namespace) = known.map_err(|error| not_ready(&error))?;
        for pool in restricted {
            candidates.admit(pool, &of_pod, &of_namespace, &"the request")?;
        }
        let choose = |family| {
            let choice = candidates.choose(family, &of_pod, &of_namespace, &self.default_pool);
            Ok((family, choice?))
        };
        families
            .into_iter()
            .map(choose)
            .collect::<Result<_, ChoiceError>>()
            .map_err(Refusal::from)
    }

    /// Says why it is this pool that has no address.
    fn explained(&self, error: ApiError, choices: &BTreeMap<Family, Choice>) -> ApiError {
        let is_of_pool = matches!(
            error.code,
            ErrorCode::PoolUnknown | ErrorCode::PoolExhausted | ErrorCode::PoolNotReady
        );
        let named = choices
            .values()
            .filter(|choice| choice.pool != self.default_pool);
        let reasons: BTreeSet<String> = named
            .map(|choice| {
                let (pool, why) = (&choice.pool, choice.why);
                let candidates = self.candidates.borrow();
                if candidates.as_ref().is_none_or(|all| all.has(pool)) {
                    format!("pool {pool}: {why}")
                } else {
                    format!("pool {pool}: {why}; there is no CiliumPodIPPool {pool}")
                }
            })
            .collect();
        if !is_of_pool || reasons.is_empty() {
            return error;
        }
        let reasons: Vec<_> = reasons.into_iter().collect();
        let message = format!("{} ({})", error.message, reasons.join("; "));
        ApiError { message, ..error }
    }
}

#[cfg(test)]
mod tests;
