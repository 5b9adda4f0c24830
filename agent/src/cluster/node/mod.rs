//! The node's own `CiliumNode`: created if missing, watched, and passed on like the document's
//! file.

pub(in crate::cluster) mod cards;
pub(in crate::cluster) mod ensure_node;
mod ensuring;
pub(in crate::cluster) mod identity;
pub(in crate::cluster) mod instance;
pub(in crate::cluster) mod node_ready;
pub(in crate::cluster) mod writer;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use apiserver::client::Connection;
use apiserver::objects;
use apiserver::patient::patient;
use apiserver::retry;
use datapath_common::mark::MarkLayout;
use futures_util::StreamExt as _;
use kube::runtime::watcher::Event;
use kubernetes::node::crd_mode::FlatPool;
use kubernetes::node::{backup, marks, node_pools};
use loader::intent::{Node, StaticAddress};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::cluster::node::ensure_node::Creation;
use crate::cluster::node::ensuring::Ensuring;
use crate::cluster::node::identity::Identity;
use config::IpamMode;
use node_document::DocumentError;
use sources::follow::Followed;
use sources::kept::Kept;
use sources::node::NodeSource;

/// Interval at which the object is read by itself after a watch has failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The current object.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct Current {
    pub(in crate::cluster) object: Arc<Value>,
    /// Its generation of the document.
    pub(in crate::cluster) generation: u64,
    /// True if it is the document in force: a new one without ENIs is not, if the last one had
    /// some.
    pub(in crate::cluster) in_force: bool,
}

/// The settings that objects are read by.
#[derive(Clone, Copy, Debug)]
pub(in crate::cluster) struct Reading {
    pub(in crate::cluster) mark: MarkLayout,
    pub(in crate::cluster) mode: IpamMode,
}

/// The task that follows it.
pub(in crate::cluster) struct NodeTask {
    connection: Connection,
    name: String,
    reading: Reading,
    ensuring: Ensuring,
    source: watch::Sender<NodeSource>,
    current: watch::Sender<Option<Current>>,
    kept: Option<Kept>,
    /// The instance that this is, by its metadata service.
    identity: watch::Receiver<Identity>,
    /// True if the incoming list has the object.
    is_listed: bool,
    /// The last object that was in force, which an earlier agent may have kept.
    last: Option<Arc<Value>>,
    /// The object is one of a restored API server, and not in force before this time.
    barred: Option<Instant>,
}

impl NodeTask {
    pub(in crate::cluster) fn new(
        connection: Connection,
        name: String,
        reading: Reading,
        creation: Option<Creation>,
    ) -> (
        Self,
        watch::Receiver<NodeSource>,
        watch::Receiver<Option<Current>>,
    ) {
        let (source, document) = watch::channel(NodeSource::default());
        let (current, seen) = watch::channel(None);
        let task = Self {
            connection,
            name,
            reading,
            ensuring: Ensuring::new(creation),
            source,
            current,
            kept: None,
            identity: watch::channel(Identity::Unknown).1,
            is_listed: false,
            last: None,
            barred: None,
        };
        (task, document, seen)
    }

    /// Refuses documents of other instances.
    pub(in crate::cluster) fn of_instance(mut self, identity: watch::Receiver<Identity>) -> Self {
        self.identity = identity;
        self
    }

    /// Keeps the last valid object on disk: it is in force until the server gives one.
    pub(in crate::cluster) fn keeping(mut self, kept: Kept) -> Self {
        let read = kept.read_as(&self.place(), |text| {
            let object = serde_json::from_str::<Value>(text)?;
            Ok::<_, anyhow::Error>((self.parse(&object)?, object))
        });
        let (node, object) = read.unzip();
        if let Some(object) = object {
            self.note_claims(&object);
            self.last = Some(Arc::new(object));
        }
        self.source.send_replace(Followed::kept(node));
        self.kept = Some(kept);
        self
    }

    /// Name of the object as the record of the kept one has it.
    fn place(&self) -> String {
        format!("CiliumNode {}", self.name)
    }

    fn parse(&self, object: &Value) -> std::result::Result<Node, DocumentError> {
        let parsed = node_document::parse(&object.to_string(), self.reading.mark);
        parsed.map(|node| self.with_settings(node, object))
    }

    /// Runs until no receiver of the document is left. `written` are objects as the writer got them
    /// back.
    pub(in crate::cluster) async fn run(mut self, mut written: mpsc::Receiver<Value>) {
        let watching = self.connection.watching();
        let config = watching.fields(&format!("metadata.name={}", self.name));
        let nodes = objects::cilium_nodes(&self.connection.client);
        let events = patient(self.connection.lists.follow(nodes, config));
        let mut events = std::pin::pin!(events);
        loop {
            let due = self.ensuring.due;
            tokio::select! {
                () = self.source.closed() => return,
                event = events.next() => match event {
                    Some(Ok(event)) => self.take_event(event),
                    Some(Err(error)) => {
                        let text = self.connection.lists.describe(&error);
                        self.fail(&format!("the CiliumNode is not followed: {text}"));
                        let busy = retry::requested(&error).unwrap_or_default();
                        // A watch that goes on says so with the next change only.
                        let again = Instant::now() + busy.max(LOOK_AGAIN);
                        self.ensuring.due.get_or_insert(again);
                    }
                    None => return,
                },
                Some(object) = written.recv() => self.take(object),
                // It runs beside the watch, so that a slow answer does not keep the node from being
                // followed.
                outcome = ensuring::outcome(&mut self.ensuring.attempt) => self.ensured(outcome),
                () = ensuring::news(&mut self.ensuring.creation) => self.ensuring.take_instance(),
                () = changed(&mut self.identity) => self.take_identity(),
                () = sleep_until(due.unwrap_or_else(Instant::now)),
                    if due.is_some() && self.ensuring.attempt.is_none() => self.ensure(),
            }
        }
    }

    fn take_event(&mut self, event: Event<kube::api::DynamicObject>) {
        match event {
            Event::Init => self.is_listed = false,
            Event::InitApply(object) => {
                self.is_listed = true;
                let object = self.take_followed(object);
                // A list can be older than an answer to a write. A read that begins now cannot.
                if object.is_some_and(|object| self.is_old(&object)) {
                    self.ensuring.hurry();
                }
            }
            Event::Apply(object) => drop(self.take_followed(object)),
            Event::InitDone if self.is_listed => {}
            Event::InitDone | Event::Delete(_) => self.miss(),
        }
    }

    /// Takes an object in, unless it is older than the last. Returns it.
    fn take_followed(&mut self, object: kube::api::DynamicObject) -> Option<Value> {
        match objects::value(object) {
            Ok(object) => {
                self.take(object.clone());
                Some(object)
            }
            Err(error) => {
                self.fail(&error.to_string());
                None
            }
        }
    }

    /// The object is not there. What is known stays in force.
    fn miss(&mut self) {
        self.current.send_replace(None);
        self.fail(&format!("there is no CiliumNode {}", self.name));
        if self.ensuring.creation.is_some() {
            self.ensuring.hurry();
        }
    }

    /// The last object that is known.
    fn newest(&self) -> Option<Arc<Value>> {
        let current = self.current.borrow();
        let current = current.as_ref().map(|it| Arc::clone(&it.object));
        current.or_else(|| self.last.clone())
    }

    fn is_old(&self, object: &Value) -> bool {
        self.newest()
            .is_some_and(|known| objects::is_older(object, &known))
    }

    fn take(&mut self, object: Value) {
        if self.is_old(&object) {
            return;
        }
        let known = self.newest();
        if known.is_some_and(|known| backup::is_of_backup(&object, &known)) {
            self.restore(object);
        } else {
            self.accept(object);
        }
    }

    /// Accepts an object of a backup. The last document stays in force, without its claims.
    fn restore(&mut self, object: Value) {
        tracing::warn!(
            "{}: version {} is one of before, as after the API server was restored from a backup; \
             the last document stays in force for {:?}, so that the operator can write the status",
            self.place(),
            object["metadata"]["resourceVersion"],
            backup::MENDED
        );
        let until = self
            .barred
            .get_or_insert_with(|| Instant::now() + backup::MENDED);
        self.ensuring.due = Some(*until);
        self.withdraw_claims();
        self.accept(object);
    }

    /// Withdraws the claims of the document in force, and of the kept one.
    fn withdraw_claims(&mut self) {
        let Some(last) = &self.last else { return };
        let bare = backup::without_claims(last);
        if let Some(kept) = &self.kept {
            kept.write(&self.place(), &bare.to_string());
        }
        if let Ok(node) = self.parse(&bare) {
            self.source
                .send_if_modified(|source| source.take(Ok(node), "CiliumNode", &self.name));
        }
    }

    fn accept(&mut self, object: Value) {
        let parsed = self.parse(&object).map_err(|error| error.to_string());
        let parsed = parsed.and_then(|node| {
            self.identity.borrow().admits(node.instance.as_deref())?;
            Ok(node)
        });
        let parsed = parsed.map_err(|error| format!("{}: {error}", self.place()));
        let had_enis = |node: &Arc<Node>| !node.enis.is_empty();
        let had_enis = self.source.borrow().value.as_ref().is_some_and(had_enis);
        let was_barred = self
            .barred
            .take_if(|until| *until <= Instant::now())
            .is_some();
        let refusal = match &parsed {
            _ if self.barred.is_some() => Some("its status is that of a backup"),
            // It was recreated: its ENIs are still those of the instance, and pods use them.
            Ok(node) if had_enis && node.enis.is_empty() => {
                Some("status.eni.enis has no ENI any more")
            }
            _ => None,
        };
        let in_force = parsed.is_ok() && refusal.is_none();
        let is_new = self.source.send_if_modified(|source| {
            if let Some(refusal) = refusal {
                let reason = format!("{}: {refusal}", self.place());
                return source.fail(reason, "CiliumNode", &self.name);
            }
            source.take(parsed, "CiliumNode", &self.name)
        });
        let object = Arc::new(object);
        if in_force {
            self.note_claims(&object);
            self.last = Some(Arc::clone(&object));
        }
        if let Some(kept) = self
            .kept
            .as_ref()
            .filter(|_| (is_new || was_barred) && in_force)
        {
            kept.write(&self.place(), &object.to_string());
        }
        let generation = self.source.borrow().generation;
        self.current.send_replace(Some(Current {
            object,
            generation,
            in_force,
        }));
    }

    /// Records the claims that a successor of the object is to have.
    fn note_claims(&mut self, object: &Value) {
        if let Some(creation) = &mut self.ensuring.creation {
            creation.claims = node_pools::claims_on_enis(object);
        }
    }

    /// The node of a document that may not have all of the settings yet.
    fn with_settings(&self, mut node: Node, object: &Value) -> Node {
        node.flat = (self.reading.mode == IpamMode::Crd).then(|| FlatPool::read(object));
        node.is_versioned = marks::has_operator(object);
        let tags = self.ensuring.creation.as_ref();
        let tags = tags.map(|creation| &creation.parameters.ipam.static_ip_tags);
        let asks = tags.is_some_and(|tags| !tags.is_empty());
        if asks && node.static_address == StaticAddress::NotAsked {
            node.static_address = StaticAddress::Awaited;
        }
        node
    }

    /// The instance that this is has become known: the document may be another one's.
    fn take_identity(&mut self) {
        let identity = self.identity.borrow_and_update().clone();
        let is_anothers = self.source.send_if_modified(|source| {
            let node = source.value.as_ref();
            let instance = node.and_then(|node| node.instance.as_deref());
            let is_ours = identity.admits(instance).is_ok();
            if !is_ours {
                source.value = None;
            }
            !is_ours
        });
        if is_anothers && let Some(creation) = &mut self.ensuring.creation {
            creation.claims = None;
        }
        let current = self.current.borrow().clone();
        if let Some(current) = current {
            self.take(Value::clone(&current.object));
        }
    }

    /// Says why there is nothing newer.
    fn fail(&mut self, error: &str) {
        self.source
            .send_if_modified(|source| source.fail(error.to_owned(), "CiliumNode", &self.name));
    }

    /// Begins to read the object, or to make it.
    fn ensure(&mut self) {
        let known = self.newest();
        let client = self.connection.client.clone();
        self.ensuring.begin(client, &self.name, known);
    }

    fn ensured(&mut self, outcome: Result<Value>) {
        self.ensuring.attempt = None;
        match outcome {
            Ok(object) => {
                self.ensuring.retry.succeeded();
                let known = self.ensuring.known.take();
                if known.is_some_and(|known| objects::is_older(&object, &known)) {
                    self.restore(object);
                } else {
                    self.take(object);
                }
            }
            Err(error) => {
                let after = self.ensuring.retry.failed(error.as_ref());
                self.ensuring.due = Some(Instant::now() + after);
                let text = self.connection.lists.describe(error.as_ref());
                self.fail(&format!("cannot read or create the CiliumNode: {text}"));
            }
        }
    }
}

/// Waits for another identity; for ever where it is the last.
async fn changed(identity: &mut watch::Receiver<Identity>) {
    if identity.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
