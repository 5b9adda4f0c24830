//! The sources of the node and its pools: files, or a cluster.

use std::path::PathBuf;
use std::sync::Arc;

use config::Config;
use loader::intent::Settings;
use sources::kept::Kept;
use sources::node;
use sources::used_pools::UsedPools;
use tokio::sync::mpsc;

use crate::actor::parts::Streams;
use crate::actor::policy::{OfCluster, PolicyFiles};
use crate::cluster::{Cluster, ClusterWarnings, POOLS_PLACE, Prepared, Signals};
use crate::server::Handle;

/// The actor's inputs.
pub(super) struct Inputs {
    /// The name of the node's document.
    pub(super) document: PathBuf,
    pub(super) streams: Streams,
    /// Signals that trigger queries of the node's demand.
    pub(super) signals: Arc<Signals>,
    /// Messages about the cluster, for the status.
    pub(super) cluster_warnings: ClusterWarnings,
}

/// Starts watching the configured sources. Commands come to the actor by the handle.
///
/// Must be called inside a tokio runtime.
pub(super) fn follow(
    config: &Config,
    cluster: Option<Prepared>,
    settings: &mut Settings,
    kept: Kept,
) -> (Handle, Inputs) {
    let (handle, commands) = Handle::new(Handle::REPLY_TIMEOUT);
    let Some(prepared) = cluster else {
        let document = config.node.document.as_path().to_owned();
        let (_nobody, demand_queries) = mpsc::channel(1);
        let streams = Streams {
            commands,
            files: PolicyFiles::follow(&settings.masquerade, UsedPools::open(&kept, None)),
            node: node::watch_kept(document.clone(), settings.mark, kept),
            demand_queries,
        };
        let inputs = Inputs {
            document,
            streams,
            signals: Arc::default(),
            cluster_warnings: ClusterWarnings::default(),
        };
        return (handle, inputs);
    };
    let cluster = Cluster::start(prepared, config, kept, &handle);
    // Before the pools are read, no pool's policy is known.
    settings.masquerade.pools = Some(POOLS_PLACE.into());
    let of_cluster = OfCluster {
        services: cluster.services,
        unenforced: cluster.unenforced,
        keeps_off: cluster.keeps_off,
    };
    let files = PolicyFiles::follow_cluster(
        &settings.masquerade,
        cluster.pools,
        cluster.used_pools,
        of_cluster,
    );
    let streams = Streams {
        commands: cluster.gate.guard(commands),
        node: cluster.node,
        files,
        demand_queries: cluster.demand_queries,
    };
    let inputs = Inputs {
        document: cluster.document,
        streams,
        signals: cluster.signals,
        cluster_warnings: cluster.warnings,
    };
    (handle, inputs)
}
