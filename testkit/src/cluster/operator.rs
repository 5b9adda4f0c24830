//! A stand-in for the operator. It writes the fabric's ENIs into each node's object as soon as the
//! object exists, and whenever they are missing from it. It also gives blocks of a plain pool to
//! nodes that request them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::blocks;
use crate::fabric::{Fabric, Netns};
use crate::kubernetes::{ApiServer, Caller, User};

/// Period of its checks.
const PERIOD: Duration = Duration::from_millis(500);

/// The stand-in, running. Dropping it ends it.
#[derive(Debug)]
pub struct Operator {
    gives_blocks: Arc<AtomicBool>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A node, and the status for its object.
struct Node {
    path: String,
    status: Value,
    /// Index of the node, and number of times that it got blocks.
    number: usize,
    given: usize,
}

impl Operator {
    pub(super) fn start(server: &ApiServer, fabrics: &[&Fabric]) -> Result<Self> {
        let netns = Netns::foreign(&server.netns().path())?;
        let nodes = fabrics.iter().enumerate().map(|(number, fabric)| Node {
            path: format!("/apis/cilium.io/v2/ciliumnodes/{}", fabric.name()),
            status: fabric.document()["status"].clone(),
            number,
            given: 0,
        });
        let mut nodes: Vec<_> = nodes.collect();
        let (url, certificate) = (server.url(), server.certificate());
        let (stop, stopped) = mpsc::channel();
        let gives_blocks = Arc::new(AtomicBool::new(true));
        let gives = Arc::clone(&gives_blocks);
        let thread = thread::spawn(move || {
            let api = Caller::new(&netns, url, &certificate, &User::Admin.token());
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                for node in &mut nodes {
                    // The server or the object may be missing: the next period tries again.
                    let _later = node.serve(&api, gives.load(Ordering::SeqCst));
                }
            }
        });
        Ok(Self {
            gives_blocks,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Makes it give blocks of the plain pool, as it does by default, or none.
    pub fn give_blocks(&self, gives: bool) {
        self.gives_blocks.store(gives, Ordering::SeqCst);
    }
}

impl Node {
    fn serve(&mut self, api: &Caller<'_>, gives_blocks: bool) -> Result<()> {
        let node = api.get(&self.path)?.expect(200)?;
        if node["status"]["eni"] == self.status["eni"] {
            if gives_blocks {
                self.give(api, &node)?;
            }
            return Ok(());
        }
        let patch = json!({"status": self.status});
        let status = format!("{}/status", self.path);
        api.merge(&status, &patch)?.expect(200).map(drop)
    }
}

impl Node {
    /// Gives missing blocks, on condition that the node has not written since.
    fn give(&mut self, api: &Caller<'_>, node: &Value) -> Result<()> {
        let Some(allocated) = blocks::next(node, self.number, &mut self.given) else {
            return Ok(());
        };
        let patch = json!({
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"ipam": {"pools": {"allocated": allocated}}}
        });
        api.merge(&self.path, &patch)?.expect(200).map(drop)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ended = thread.join();
        }
    }
}
