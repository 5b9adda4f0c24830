//! The sources of the masquerade policy and of the services' addresses.

use std::collections::BTreeSet;

use loader::intent::ClusterServices;
use loader::intent::masquerade::{AgentCidrs, MasqueradeSettings, Policy, Pools};
use tokio::sync::watch;

use crate::cluster::{ServicesSource, Unenforced};
use sources::follow::Followed;
use sources::used_pools::UsedPools;
use sources::{masq_agent, pools};

/// The watched files; none if the configuration names none. In a cluster, objects replace some of
/// them.
#[derive(Debug, Default)]
pub(crate) struct PolicyFiles {
    pools: Option<watch::Receiver<Followed<Pools>>>,
    agent: Option<watch::Receiver<Followed<AgentCidrs>>>,
    cluster: Option<OfCluster>,
    used: UsedPools,
}

/// The sources that only a cluster has.
#[derive(Debug)]
pub(crate) struct OfCluster {
    /// The services' addresses.
    pub(crate) services: watch::Receiver<ServicesSource>,
    /// Network policies that possibly nothing enforces, if the agent checks for them.
    pub(crate) unenforced: Option<watch::Receiver<Unenforced>>,
    /// Reason for which the Node object may still keep pods off.
    pub(crate) keeps_off: watch::Receiver<Option<String>>,
}

impl PolicyFiles {
    /// Reads the files that the settings name, and watches them.
    pub(crate) fn follow(settings: &MasqueradeSettings, used: UsedPools) -> Self {
        let MasqueradeSettings { pools, agent, .. } = settings;
        Self {
            pools: pools.clone().map(pools::watch),
            agent: agent.clone().map(masq_agent::watch),
            cluster: None,
            used,
        }
    }

    /// Watches the files, with the pools and the other sources of a cluster.
    pub(crate) fn follow_cluster(
        settings: &MasqueradeSettings,
        pools: watch::Receiver<Followed<Pools>>,
        used: UsedPools,
        cluster: OfCluster,
    ) -> Self {
        Self {
            pools: Some(pools),
            agent: settings.agent.clone().map(masq_agent::watch),
            cluster: Some(cluster),
            used,
        }
    }

    /// Waits for a change of any source.
    pub(crate) async fn changed(&mut self) {
        let Self {
            pools,
            agent,
            cluster,
            used: _,
        } = self;
        let services = cluster.as_mut().map(|cluster| &mut cluster.services);
        tokio::select! {
            () = changed(pools.as_mut()) => {}
            () = changed(agent.as_mut()) => {}
            () = changed(services) => {}
        }
    }

    /// The known addresses of the cluster's services.
    pub(crate) fn services(&mut self) -> ClusterServices {
        let cluster = self.cluster.as_mut();
        cluster.map_or_else(ClusterServices::none, |cluster| {
            cluster.services.borrow_and_update().known.clone()
        })
    }

    /// The cluster's sources; none without a cluster.
    pub(crate) fn cluster(&self) -> Option<&OfCluster> {
        self.cluster.as_ref()
    }

    /// The policy in force, from the sources and the names of the pools in use.
    pub(crate) fn policy(&mut self, used: &BTreeSet<String>) -> Policy {
        let pools = self.pools.as_mut();
        let pools = pools.and_then(|r| r.borrow_and_update().value.clone());
        Policy {
            pools: self.used.in_force(pools, used),
            agent: self
                .agent
                .as_mut()
                .and_then(|r| r.borrow_and_update().value.clone()),
        }
    }

    /// The pool documents, if they are watched.
    pub(crate) fn pools(&self) -> Option<Followed<Pools>> {
        self.pools.as_ref().map(|r| r.borrow().clone())
    }

    /// The ip-masq-agent files, if they are watched.
    pub(crate) fn agent(&self) -> Option<Followed<AgentCidrs>> {
        self.agent.as_ref().map(|r| r.borrow().clone())
    }
}

/// Waits for a change; forever without a source.
async fn changed<T>(receiver: Option<&mut watch::Receiver<T>>) {
    let ended = match receiver {
        Some(receiver) => receiver.changed().await.is_err(),
        None => true,
    };
    if ended {
        std::future::pending::<()>().await;
    }
}
