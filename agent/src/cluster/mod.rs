//! The agent in a cluster: the rim around the crate `kubernetes`.
//!
//! ```text
//!  API server ──watch──> node, pools, pods, namespaces ──> the same receivers that files feed
//!      ^                        │
//!      └──────writer <── outlook of the actor       gate: the pool of a pod, before the actor sees it
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
use datapath_common::mark::MarkLayout;
use document::read_file;
use kubernetes::node_pools::Outlook;
use kubernetes::parameters::Parameters;
use loader::intent::masquerade::Pools;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use self::exhaustion::Condition;
use self::metadata::Metadatas;
use self::node::ensure_node::Creation;
use self::node::node_ready::Arrival;
use self::node::writer::Writer;
use self::node::{NodeTask, cards, identity, instance};
pub(crate) use self::policies::Unenforced;
use self::pool_gate::Gate;
pub(crate) use self::services::ServicesSource;
pub(crate) use self::warnings::Remarks;
use crate::config::{AbsolutePath, Config, KubernetesSection, ServiceCidrs};
use crate::server::Handle;
use crate::sources::follow::Followed;
use crate::sources::node::{Kept, NodeSource};
use crate::sources::used_pools::UsedPools;
use crate::state::kept::{Server, Subject};

/// Name of the pool objects in place of a path.
pub(crate) const POOLS_PLACE: &str = "CiliumPodIPPool";

/// Query for the node's demand, by the document of a generation.
///
/// The actor gives no answer while it has another generation, or gives no addresses yet.
#[derive(Debug)]
pub(crate) struct AskOutlook {
    pub(crate) generation: u64,
    pub(crate) reply: oneshot::Sender<Option<Outlook>>,
}

/// Signals to the writer that there may be something to write.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// The outlook may have changed, as the actor reports.
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
    pub(crate) outlooks: mpsc::Receiver<AskOutlook>,
    /// Gate that commands pass before they reach the actor.
    pub(crate) gate: Gate,
    /// Signals that make the writer check.
    pub(crate) signals: Arc<Signals>,
    /// Remarks for the status.
    pub(crate) remarks: Remarks,
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
    pub(crate) fn start(
        prepared: Prepared,
        config: &Config,
        (mark, kept): (MarkLayout, Kept),
        agent: &Handle,
    ) -> Self {
        let Prepared {
            name,
            parameters,
            connection,
        } = prepared;
        let kept = kept.with_server(Server::new(
            &connection.server.url,
            &connection.server.roots,
        ));
        let section = &config.kubernetes;
        let remarks = Remarks::default();
        let creation = section.create_node.then(|| Creation {
            parameters,
            instance: instance::look(section.metadata_endpoint, remarks.clone()),
        });
        cards::follow(section.metadata_endpoint, agent.clone());
        let signals = Arc::new(Signals::default());
        let (ask, outlooks) = mpsc::channel(1);
        let (written, from_writer) = mpsc::channel(1);
        let (task, node, current) = NodeTask::new(
            connection.clone(),
            name.clone(),
            (mark, section.ipam.mode),
            creation,
        );
        let task = task.of_instance(identity::look(section.metadata_endpoint));
        tokio::spawn(task.keeping(kept.clone()).run(from_writer));
        let writer = Writer {
            nodes: objects::cilium_nodes(&connection.client),
            name: name.clone(),
            current,
            ask,
            written,
            signals: Arc::clone(&signals),
            interval: section.update_interval.get(),
        };
        tokio::spawn(writer.run());
        let (candidates, candidates_seen) = watch::channel(None);
        // Read before the first answer of the server replaces the record.
        let used_pools = UsedPools::open(&kept, Some(POOLS_PLACE));
        let kept_pools = kept.of(Subject::Pools);
        let pools = pools::follow(&connection, candidates, remarks.clone(), kept_pools);
        let metadatas = Metadatas::follow(&connection, &name, agent, &kept);
        let events = Events::start(&connection.client, reporter(&name));
        tokio::spawn(refusals::run(name.clone(), agent.clone(), events.clone()));
        let condition = Condition {
            client: connection.client.clone(),
            node: name.clone(),
            agent: agent.clone(),
        };
        tokio::spawn(condition.run());
        let unenforced = (config.datapath.path == PathMode::Direct).then(|| {
            policies::follow(
                &connection,
                metadatas.clone(),
                Arc::clone(&signals),
                agent.clone(),
                events.clone(),
            )
        });
        let (trouble, keeps_off) = watch::channel(None);
        let arrival = Arrival {
            client: connection.client.clone(),
            node: name.clone(),
            taint: section.startup_taint.clone(),
            agent: agent.clone(),
            trouble,
        };
        tokio::spawn(arrival.run());
        let gate = Gate::new(
            metadatas,
            candidates_seen,
            config.ipam.default_pool.as_str().to_owned(),
            config.ipam.families.get().clone(),
            Arc::clone(&signals),
            events,
        );
        Self {
            node,
            document: PathBuf::from(format!("CiliumNode {name}")),
            pools,
            used_pools,
            services: services::follow(&connection, config.services.cidrs == ServiceCidrs::Unknown),
            unenforced,
            keeps_off,
            outlooks,
            gate,
            signals,
            remarks,
        }
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
