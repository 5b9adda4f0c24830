//! The taint of nodes whose agent is not ready.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use apiserver::client::{Connection, within};
use apiserver::follow::{LOOK_FOR, Resource, Trouble};
use apiserver::{cause, lease, objects};
use fleet::Standing;
use ipam::Time;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kubernetes::operation::readiness::{self, AgentPod, Readiness};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::WRITE;
use super::actor::Inbox;
use super::change::Change;
use super::follow::log_trouble;
use super::health::Beat;

/// The namespace and the label of the agent's pods, as the manifests have them.
const NAMESPACE: &str = "kube-system";
const LABEL: &str = "app.kubernetes.io/name=towpath";
/// Changes are gathered for so long, and verdicts that failed are tried again.
const ROUND: Duration = Duration::from_secs(2);

/// Follows the agent's pods.
pub(super) async fn follow_agents(
    connection: Connection,
    pods: watch::Sender<Vec<AgentPod>>,
) -> Result<()> {
    let resource = Resource {
        versions: vec![objects::pods_in(&connection.client, NAMESPACE)],
        lists: connection.lists.clone(),
        config: connection.watching().labels(LABEL),
        absent: LOOK_FOR,
        settle: Duration::ZERO,
    };
    let tell = |all: Result<&BTreeMap<_, Option<AgentPod>>, Trouble>| {
        match all {
            Ok(all) => {
                pods.send_replace(all.values().flatten().cloned().collect());
            }
            Err(trouble) => log_trouble("pods of the agent", &trouble),
        }
        !pods.is_closed()
    };
    resource.follow(AgentPod::read, tell).await;
    Ok(())
}

/// Taints nodes, and takes taints away.
pub(super) struct Tainter {
    pub(super) nodes: Api<DynamicObject>,
    pub(super) after: Duration,
    pub(super) pods: watch::Receiver<Vec<AgentPod>>,
    pub(super) standing: watch::Receiver<Standing>,
    pub(super) inbox: Inbox,
    pub(super) beat: Beat,
}

impl Tainter {
    /// Works by the changes of Nodes until there are no more.
    pub(super) async fn run(self, mut changes: mpsc::Receiver<Change>) -> Result<()> {
        let mut readiness = Readiness::new(self.after);
        let mut nodes = BTreeMap::new();
        loop {
            loop {
                match changes.try_recv() {
                    Ok(change) => keep(&mut nodes, change),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => return Ok(()),
                }
            }
            self.beat.beat();
            let now = lease::now()?;
            let Some(ours) = self.inbox.look(|fleet, _| fleet.names()).await else {
                return Ok(());
            };
            let ours = ours
                .iter()
                .map(String::as_str)
                .filter(|name| nodes.contains_key(*name));
            readiness.see(now, ours, &self.pods.borrow().clone());
            for (name, node) in &nodes {
                let patch = readiness.verdict(now, name);
                let patch = patch.and_then(|is_tainted| readiness::patch(node, is_tainted));
                if let Some(patch) = patch.filter(|_| self.leads(now)) {
                    self.write(name, patch).await;
                    self.beat.beat();
                }
            }
            sleep(ROUND).await;
        }
    }

    /// True if a write that begins now ends within the lease.
    fn leads(&self, now: Duration) -> bool {
        let now = Time::from_millis(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        match *self.standing.borrow() {
            Standing::Leading { until } => now.after(WRITE) < until,
            Standing::Following | Standing::Watching => false,
        }
    }

    /// Writes a patch, good for one version. A refused one is made again from the next version.
    async fn write(&self, name: &str, patch: Value) {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        match within(WRITE, self.nodes.patch(name, &parameters, &patch)).await {
            Ok(_) => tracing::info!(node = name, "taint {}: changed", readiness::TAINT),
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {}
            Err(error) => {
                let cause = cause::chain(&error);
                tracing::warn!(node = name, "write the taint {}: {cause}", readiness::TAINT);
            }
        }
    }
}

fn keep(nodes: &mut BTreeMap<String, Value>, change: Change) {
    let entry = |node: Value| {
        let name = node["metadata"]["name"].as_str()?.to_owned();
        let metadata = &node["metadata"];
        let kept = serde_json::json!({
            "metadata": {
                "name": name, "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]
            },
            "spec": {"taints": node["spec"]["taints"]}
        });
        Some((name, kept))
    };
    match change {
        Change::All(all) => *nodes = all.into_iter().filter_map(entry).collect(),
        Change::One(node) => nodes.extend(entry(node)),
        Change::Gone(node) => {
            if let Some((name, _)) = entry(node) {
                nodes.remove(&name);
            }
        }
    }
}
