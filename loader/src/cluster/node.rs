//! The node's own `CiliumNode`: made where it is not, followed, and handed on like the document's file.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use datapath_common::mark::MarkLayout;
use futures_util::StreamExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher as follow};
use kubernetes::creation;
use kubernetes::parameters::Parameters;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::client::Connection;
use super::{RETRY, RETRY_MAX, objects};
use crate::intent::Node;
use crate::node::{self, NodeSource};

/// The object that is there.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) object: Arc<Value>,
    /// The document's generation that it is.
    pub(super) generation: u64,
    /// Whether it is the document in force: a new one without ENIs is not, while the last had some.
    pub(super) in_force: bool,
}

/// The task that follows it.
pub(super) struct NodeTask {
    connection: Connection,
    name: String,
    mark: MarkLayout,
    /// What it is made with; `None` where somebody else makes it.
    creation: Option<Parameters>,
    source: watch::Sender<NodeSource>,
    current: watch::Sender<Option<Current>>,
    /// When the next try to make it is due.
    due: Option<Instant>,
    failures: u32,
    /// Whether the list that comes in has the object.
    is_listed: bool,
}

impl NodeTask {
    pub(super) fn new(
        connection: Connection,
        name: String,
        mark: MarkLayout,
        creation: Option<Parameters>,
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
            mark,
            due: creation.is_some().then(Instant::now),
            creation,
            source,
            current,
            failures: 0,
            is_listed: false,
        };
        (task, document, seen)
    }

    /// Runs until nobody wants the document. `written` are objects as the writer got them back.
    pub(super) async fn run(mut self, mut written: mpsc::Receiver<Value>) {
        let watching = self.connection.watching();
        let config = watching.fields(&format!("metadata.name={}", self.name));
        let events = follow(objects::nodes(&self.connection.client), config).default_backoff();
        let mut events = std::pin::pin!(events);
        loop {
            let due = self.due;
            tokio::select! {
                () = self.source.closed() => return,
                event = events.next() => match event {
                    Some(Ok(event)) => self.take_event(event),
                    Some(Err(error)) => {
                        self.fail(&format!("the CiliumNode is not followed: {error}"));
                        // A watch that goes on says so with the next change only.
                        self.due.get_or_insert_with(|| Instant::now() + RETRY);
                    }
                    None => return,
                },
                Some(object) = written.recv() => self.take(object),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.ensure().await;
                }
            }
        }
    }

    fn take_event(&mut self, event: Event<kube::api::DynamicObject>) {
        match event {
            Event::Init => self.is_listed = false,
            Event::Apply(object) | Event::InitApply(object) => {
                self.is_listed = true;
                match objects::value(object) {
                    Ok(object) => self.take(object),
                    Err(error) => self.fail(&error.to_string()),
                }
            }
            Event::InitDone if self.is_listed => {}
            Event::InitDone | Event::Delete(_) => self.miss(),
        }
    }

    /// The object is not there. What is known stays in force.
    fn miss(&mut self) {
        self.current.send_replace(None);
        self.fail(&format!("there is no CiliumNode {}", self.name));
        if self.creation.is_some() {
            self.due.get_or_insert_with(Instant::now);
        }
    }

    fn take(&mut self, object: Value) {
        let is_old = |current: &Current| objects::is_older(&object, &current.object);
        if self.current.borrow().as_ref().is_some_and(is_old) {
            return;
        }
        let parsed = node::parse(&object.to_string(), self.mark);
        let parsed = parsed.map_err(|error| format!("CiliumNode {}: {error}", self.name));
        let had_enis = |node: &Arc<Node>| !node.enis.is_empty();
        let had_enis = self.source.borrow().value.as_ref().is_some_and(had_enis);
        let in_force = match &parsed {
            // Made anew: its ENIs are still those of the instance, and pods use them.
            Ok(node) => !(had_enis && node.enis.is_empty()),
            Err(_) => false,
        };
        self.source.send_if_modified(|source| {
            let parsed = match parsed {
                Ok(_) if !in_force => Err(format!(
                    "CiliumNode {}: status.eni.enis has no ENI any more",
                    self.name
                )),
                other => other,
            };
            source.take(parsed, "CiliumNode", &self.name)
        });
        let generation = self.source.borrow().generation;
        self.current.send_replace(Some(Current {
            object: Arc::new(object),
            generation,
            in_force,
        }));
    }

    /// Says why there is nothing newer.
    fn fail(&mut self, error: &str) {
        self.source.send_if_modified(|source| {
            source.take(Err(error.to_owned()), "CiliumNode", &self.name)
        });
    }

    /// Reads the object, and makes it, or makes right what in it is ours, where that is ours to do.
    async fn ensure(&mut self) {
        match self.try_ensure().await {
            Ok(object) => {
                self.due = None;
                self.failures = 0;
                self.take(object);
            }
            Err(error) => {
                let wait = RETRY * 2u32.pow(self.failures.min(6));
                self.failures = self.failures.saturating_add(1);
                self.due = Some(Instant::now() + wait.min(RETRY_MAX));
                self.fail(&format!("the CiliumNode cannot be read or made: {error:#}"));
            }
        }
    }

    async fn try_ensure(&self) -> Result<Value> {
        let api = objects::nodes(&self.connection.client);
        let Some(parameters) = &self.creation else {
            let there = api.get(&self.name).await.context("read it")?;
            return Ok(objects::value(there)?);
        };
        let node = objects::kubernetes_nodes(&self.connection.client);
        let node = node.get(&self.name).await;
        let node = objects::value(node.with_context(|| format!("read Node {}", self.name))?)?;
        let there = api.get_opt(&self.name).await.context("read it")?;
        let Some(there) = there else {
            let object = creation::create(&node, None, parameters);
            let object = serde_json::from_value(object)?;
            let made = api.create(&PostParams::default(), &object).await;
            tracing::info!(name = self.name, "CiliumNode made");
            return Ok(objects::value(made?)?);
        };
        let there = objects::value(there)?;
        let Some(patch) = creation::update(&there, &node, None, parameters) else {
            return Ok(there);
        };
        let changed = api
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        Ok(objects::value(changed.context("change it")?)?)
    }
}

#[cfg(test)]
mod tests;
