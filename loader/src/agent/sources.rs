//! Where the agent hears of its node and its pools: files, or a cluster.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::policy::{OfCluster, PolicyFiles};
use crate::cluster::{AskOutlook, Cluster, POOLS_PLACE, Prepared, Remarks, Signals};
use crate::config::Config;
use crate::intent::Settings;
use crate::masquerade::UsedPools;
use crate::node::{self, Kept, NodeSource};
use crate::server::{Command, Handle};

/// Everything that the actor is told.
pub(super) struct Sources {
    /// What the node's document is called.
    pub(super) document: PathBuf,
    pub(super) source: watch::Receiver<NodeSource>,
    pub(super) files: PolicyFiles,
    /// Who wants to know what the node wants.
    pub(super) outlooks: mpsc::Receiver<AskOutlook>,
    /// The way to have them ask.
    pub(super) signals: Arc<Signals>,
    pub(super) commands: mpsc::Receiver<Command>,
    /// What there is to tell people of the cluster.
    pub(super) remarks: Remarks,
}

impl Sources {
    /// Begins to follow what the configuration says.
    ///
    /// Must be called inside a tokio runtime.
    pub(super) fn follow(
        config: &Config,
        cluster: Option<Prepared>,
        settings: &mut Settings,
        handle: &Handle,
        (commands, kept): (mpsc::Receiver<Command>, Kept),
    ) -> Self {
        if let Some(prepared) = cluster {
            let cluster = Cluster::start(prepared, config, (settings.mark, kept), handle);
            // Nothing is known of a pool before they are read.
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
                outlooks: cluster.outlooks,
                signals: cluster.signals,
                commands: cluster.gate.guard(commands),
                remarks: cluster.remarks,
            };
        }
        let document = config.node.document.as_path().to_owned();
        let (_nobody, outlooks) = mpsc::channel(1);
        Self {
            files: PolicyFiles::follow(&settings.masquerade, UsedPools::open(&kept, None)),
            source: node::watch_kept(document.clone(), settings.mark, kept),
            document,
            outlooks,
            signals: Arc::default(),
            commands,
            remarks: Remarks::default(),
        }
    }
}
