//! The agent in a cluster: the rim around the crate `kubernetes`.
//!
//! ```text
//!  API server ──watch──> node, pools, pods, namespaces ──> the same receivers that files feed
//!      ^                        │
//!      └──────writer <── demand of the actor        gate: the pool of a pod, before the actor sees it
//! ```

mod exhaustion;
mod keeper;
mod metadata;
mod node;
mod policies;
mod pool_gate;
mod pools;
mod refusals;
mod services;
mod warnings;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use api::types::PathMode;
use apiserver::client::{Access, Connection};
use apiserver::events::{Events, Reporter};
use apiserver::objects;
use document::read_file;
use kubernetes::node::node_pools::NodeDemand;
use kubernetes::node::parameters::Parameters;
use loader::intent::masquerade::Pools;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use self::exhaustion::Condition;
use self::metadata::Metadatas;
use self::node::ensure_node::Creation;
use self::node::node_ready::Arrival;
use self::node::writer::Writer;
use self::node::{NodeTask, Reading, cards, identity, instance};
use self::policies::Checks;
pub(crate) use self::policies::Unenforced;
use self::pool_gate::{Choosing, Gate};
pub(crate) use self::services::ServicesSource;
pub(crate) use self::warnings::ClusterWarnings;
use crate::server::Handle;
use config::{AbsolutePath, Config, KubernetesSection, ServiceCidrs};
use sources::follow::Followed;
use sources::kept::Kept;
use sources::kept::{Server, Subject};
use sources::node::NodeSource;
use sources::used_pools::UsedPools;

/// Name of the pool objects in place of a path.
pub(crate) const POOLS_PLACE: &str = "CiliumPodIPPool";

/// Query for the node's demand, by the document of a generation.
///
/// The actor gives no answer while it has another generation, or gives no addresses yet.
#[derive(Debug)]
pub(crate) struct DemandQuery {
    pub(crate) generation: u64,
    pub(crate) reply: oneshot::Sender<Option<NodeDemand>>,
}

/// Signals to the writer that there may be something to write.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// The demand may have changed, as the actor reports.
    pub(crate) changed: Notify,
    /// The agent's own addresses; `None` while they are not known.
    pub(crate) ingress: watch::Sender<Option<BTreeSet<IpAddr>>>,
    /// A pod waits for addresses, or a block for its claim.
    pub(crate) waiting: Notify,
    /// A pod was attached or detached.
    attached: Notify,
}

/// Interface of the cluster's side for the rest of the agent.
pub(crate) struct Cluster {
    /// The node's document.
    pub(crate) node: watch::Receiver<NodeSource>,
    /// Name of the document in place of a path.
    pub(crate) document: PathBuf,
    /// The pools.
    pub(crate) pools: watch::Receiver<Followed<Pools>>,
    /// Pools that were deleted and may be in use.
    pub(crate) used_pools: UsedPools,
    /// The services' addresses.
    pub(crate) services: watch::Receiver<ServicesSource>,
    /// Network policies that may not be enforced, if the agent looks for them.
    pub(crate) unenforced: Option<watch::Receiver<Unenforced>>,
    /// The reason why the Node may still keep pods off.
    pub(crate) keeps_off: watch::Receiver<Option<String>>,
    /// Queries of the writer.
    pub(crate) demand_queries: mpsc::Receiver<DemandQuery>,
    /// Gate that commands pass before they reach the actor.
    pub(crate) gate: Gate,
    /// Signals that make the writer check.
    pub(crate) signals: Arc<Signals>,
    /// Warnings for the status.
    pub(crate) warnings: ClusterWarnings,
}

/// A cluster that the settings name. It has had no request yet.
pub(crate) struct Prepared {
    name: String,
    parameters: Parameters,
    connection: Connection,
}

impl Prepared {
    /// Reads what the settings name. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the settings cannot be used.
    pub(crate) async fn new(config: &Config) -> Result<Self> {
        let section = &config.kubernetes;
        if config.masquerade.pools.is_some() {
            bail!(
                "masquerade.pools is refused with kubernetes.enabled: pools are the cluster's \
                 {POOLS_PLACE} objects; allowed: null"
            );
        }
        Ok(Self {
            name: section.node_name()?,
            parameters: parameters(section)?,
            connection: connect(section).await?,
        })
    }
}

impl Cluster {
    /// Begins to follow the cluster. Waits for nothing: the API server may be away.
    ///
    /// Must be called inside a tokio runtime.
    pub(crate) fn start(prepared: Prepared, config: &Config, kept: Kept, agent: &Handle) -> Self {
        let Prepared {
            name,
            parameters,
            connection,
        } = prepared;
        let server = &connection.server;
        let kept = kept.with_server(Server::new(&server.url, &server.roots));
        let section = &config.kubernetes;
        let tasks = Tasks {
            connection: &connection,
            name: &name,
            section,
            agent,
            signals: Arc::default(),
            warnings: ClusterWarnings::default(),
        };
        cards::follow(section.metadata_endpoint, agent.clone());
        let reading = Reading {
            mark: config.datapath.mark_mask.layout(),
            mode: section.ipam.mode,
        };
        let (node, demand_queries) = tasks.follow_node(parameters, reading, &kept);
        let (candidates, candidates_seen) = watch::channel(None);
        // Read before the first answer of the server replaces the record.
        let used_pools = UsedPools::open(&kept, Some(POOLS_PLACE));
        let kept_pools = kept.of(Subject::Pools);
        let pools = pools::follow(&connection, candidates, tasks.warnings.clone(), kept_pools);
        let metadatas = Metadatas::follow(&connection, &name, agent, &kept);
        let events = Events::start(&connection.client, reporter(&name));
        tokio::spawn(refusals::run(name.clone(), agent.clone(), events.clone()));
        tasks.report_conditions();
        let unenforced = (config.datapath.path == PathMode::Direct)
            .then(|| tasks.follow_policies(metadatas.clone(), events.clone()));
        let keeps_off = tasks.watch_taint();
        let gate = Gate {
            metadatas,
            candidates: candidates_seen,
            default_pool: config.ipam.default_pool.as_str().to_owned(),
            families: config.ipam.families.get().clone(),
            signals: Arc::clone(&tasks.signals),
            events,
            choosing: Choosing::default(),
        };
        Self {
            node,
            document: PathBuf::from(format!("CiliumNode {name}")),
            pools,
            used_pools,
            services: services::follow(&connection, config.services.cidrs == ServiceCidrs::Unknown),
            unenforced,
            keeps_off,
            demand_queries,
            gate,
            signals: tasks.signals,
            warnings: tasks.warnings,
        }
    }
}

/// The start of the tasks that share the connection.
struct Tasks<'a> {
    connection: &'a Connection,
    /// The node's name.
    name: &'a str,
    section: &'a KubernetesSection,
    agent: &'a Handle,
    signals: Arc<Signals>,
    warnings: ClusterWarnings,
}

impl Tasks<'_> {
    /// Follows the node's object, creates it if it has to, and writes the node's demand.
    fn follow_node(
        &self,
        parameters: Parameters,
        reading: Reading,
        kept: &Kept,
    ) -> (watch::Receiver<NodeSource>, mpsc::Receiver<DemandQuery>) {
        let section = self.section;
        let creation = section.create_node.then(|| Creation {
            parameters,
            claims: None,
            instance: instance::look(section.metadata_endpoint, self.warnings.clone()),
        });
        let (ask, demand_queries) = mpsc::channel(1);
        let (written, from_writer) = mpsc::channel(1);
        let (task, node, current) = NodeTask::new(
            self.connection.clone(),
            self.name.to_owned(),
            reading,
            creation,
        );
        let task = task.of_instance(identity::look(section.metadata_endpoint));
        tokio::spawn(task.keeping(kept.clone()).run(from_writer));
        let writer = Writer {
            nodes: objects::cilium_nodes(&self.connection.client),
            name: self.name.to_owned(),
            current,
            ask,
            written,
            signals: Arc::clone(&self.signals),
            interval: section.update_interval.get(),
        };
        tokio::spawn(writer.run());
        (node, demand_queries)
    }

    /// Writes conditions of the node about addresses that run short.
    fn report_conditions(&self) {
        let condition = Condition {
            client: self.connection.client.clone(),
            node: self.name.to_owned(),
            agent: self.agent.clone(),
        };
        tokio::spawn(condition.run());
    }

    /// Follows network policies that the direct path may bypass.
    fn follow_policies(&self, metadatas: Metadatas, events: Events) -> watch::Receiver<Unenforced> {
        let checks = Checks {
            metadatas,
            signals: Arc::clone(&self.signals),
            agent: self.agent.clone(),
            events,
        };
        policies::follow(self.connection, checks)
    }

    /// Removes the startup taint once the agent is ready; gives the reason that keeps pods off.
    fn watch_taint(&self) -> watch::Receiver<Option<String>> {
        let (trouble, keeps_off) = watch::channel(None);
        let arrival = Arrival {
            client: self.connection.client.clone(),
            node: self.name.to_owned(),
            taint: self.section.startup_taint.clone(),
            agent: self.agent.clone(),
            trouble,
        };
        tokio::spawn(arrival.run());
        keeps_off
    }
}

/// A client with a kubeconfig, or with the pod's service account. It does not connect yet.
///
/// # Errors
/// If the kubeconfig cannot be used, or if the agent is not in a pod.
async fn connect(section: &KubernetesSection) -> Result<Connection> {
    let path = section.kubeconfig.as_ref().map(AbsolutePath::as_path);
    let access = if let Some(path) = path {
        let place = || format!("kubernetes.kubeconfig: {}", path.display());
        Access::from_kubeconfig(path).await.with_context(place)?
    } else {
        Access::from_service_account().context(
            "kubernetes.kubeconfig is null, and the agent is in no pod with a service account",
        )?
    };
    access.connect(section.watch_timeout.get())
}

/// The name under which the agent writes events.
fn reporter(node: &str) -> Reporter {
    Reporter {
        component: "towpath",
        instance: node.to_owned(),
    }
}

/// Parameters of the node's `CiliumNode`: the settings, and the CNI configuration file.
fn parameters(section: &KubernetesSection) -> Result<Parameters> {
    let parameters = section.parameters();
    let Some(path) = &section.cni_configuration else {
        return Ok(parameters);
    };
    let path = path.as_path();
    let place = || format!("kubernetes.cni-configuration: {}", path.display());
    let text = read_file(path).with_context(place)?;
    parameters.overridden(&text).with_context(place)
}
