//! Reads of the node's own object by its name, and its creation.

use std::sync::Arc;

use anyhow::Result;
use apiserver::retry::Retry;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use kube::Client;
use serde_json::Value;
use tokio::time::Instant;

use super::ensure_node::{Creation, ensure};

/// A read or creation that is on its way.
type Attempt = BoxFuture<'static, Result<Value>>;

/// Tries to read the object, and to create it where it is missing.
pub(super) struct Ensuring {
    /// Parameters of its creation; `None` if another component creates it.
    pub(super) creation: Option<Creation>,
    /// Time of the next try.
    pub(super) due: Option<Instant>,
    /// The current try.
    pub(super) attempt: Option<Attempt>,
    /// The object that was known when the current try began.
    pub(super) known: Option<Arc<Value>>,
    pub(super) retry: Retry,
}

impl Ensuring {
    pub(super) fn new(creation: Option<Creation>) -> Self {
        Self {
            due: creation.is_some().then(Instant::now),
            creation,
            attempt: None,
            known: None,
            retry: Retry::default(),
        }
    }

    /// Schedules a try for now, unless there is one already.
    pub(super) fn hurry(&mut self) {
        self.due.get_or_insert_with(Instant::now);
    }

    /// Begins a try.
    pub(super) fn begin(&mut self, client: Client, name: &str, known: Option<Arc<Value>>) {
        self.due = None;
        self.known = known;
        self.attempt = Some(ensure(client, name.to_owned(), self.creation.clone()).boxed());
    }

    /// Schedules an update of the object once the instance is known.
    pub(super) fn take_instance(&mut self) {
        let creation = self.creation.as_mut();
        let is_known = creation.is_some_and(|creation| {
            let looked = creation.instance.borrow_and_update();
            looked.instance().is_some()
        });
        if is_known {
            self.hurry();
        }
    }
}

/// Waits for what is being done; for ever where nothing is.
pub(super) async fn outcome(attempt: &mut Option<Attempt>) -> Result<Value> {
    match attempt {
        Some(attempt) => attempt.await,
        None => std::future::pending().await,
    }
}

/// Waits for news of the instance; for ever if the object is not created here.
pub(super) async fn news(creation: &mut Option<Creation>) {
    if let Some(creation) = creation
        && creation.instance.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}
