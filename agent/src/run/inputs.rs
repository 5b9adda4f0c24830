//! The sources of the node and its pools: files, or a cluster.

use std::path::PathBuf;
use std::sync::Arc;

use loader::intent::Settings;
use tokio::sync::{mpsc, watch};

use crate::actor::policy::{OfCluster, PolicyFiles};
use crate::cluster::{Cluster, ClusterWarnings, DemandQuery, POOLS_PLACE, Prepared, Signals};
use crate::server::{Command, Handle};
use config::Config;
use sources::kept::Kept;
use sources::node::{self, NodeSource};
use sources::used_pools::UsedPools;

/// The actor's inputs.
pub(crate) struct Inputs {
    /// The name of the node's document.
    pub(crate) document: PathBuf,
    pub(crate) source: watch::Receiver<NodeSource>,
    pub(crate) files: PolicyFiles,
    /// Queries of the node's demand.
    pub(crate) demand_queries: mpsc::Receiver<DemandQuery>,
    /// Signals that trigger such queries.
    pub(crate) signals: Arc<Signals>,
    pub(crate) commands: mpsc::Receiver<Command>,
    /// Messages about the cluster, for the status.
    pub(crate) cluster_warnings: ClusterWarnings,
}

impl Inputs {
    /// Starts watching the configured sources.
    ///
    /// Must be called inside a tokio runtime.
    pub(crate) fn follow(
        config: &Config,
        cluster: Option<Prepared>,
        settings: &mut Settings,
        handle: &Handle,
        (commands, kept): (mpsc::Receiver<Command>, Kept),
    ) -> Self {
        if let Some(prepared) = cluster {
            let cluster = Cluster::start(prepared, config, (settings.mark, kept), handle);
            // Before the pools are read, no pool's policy is known.
            settings.masquerade.pools = Some(POOLS_PLACE.into());
            return Self {
                document: cluster.document,
                source: cluster.node,
                files: PolicyFiles::follow_cluster(
                    &settings.masquerade,
                    (cluster.pools, cluster.used_pools),
                    OfCluster {
                        services: cluster.services,
                        unenforced: cluster.unenforced,
                        keeps_off: cluster.keeps_off,
                    },
                ),
                demand_queries: cluster.demand_queries,
                signals: cluster.signals,
                commands: cluster.gate.guard(commands),
                cluster_warnings: cluster.warnings,
            };
        }
        let document = config.node.document.as_path().to_owned();
        let (_nobody, demand_queries) = mpsc::channel(1);
        Self {
            files: PolicyFiles::follow(&settings.masquerade, UsedPools::open(&kept, None)),
            source: node::watch_kept(document.clone(), settings.mark, kept),
            document,
            demand_queries,
            signals: Arc::default(),
            commands,
            cluster_warnings: ClusterWarnings::default(),
        }
    }
}
