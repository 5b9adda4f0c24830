//! The tasks that follow objects of the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use apiserver::client::Connection;
use apiserver::follow::{LOOK_FOR, Resource, Trouble};
use apiserver::objects;
use fleet::{Input, Standing};
use kubernetes::operation::pending;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::actor::Inbox;
use super::change::{self, Change, Followed};
use super::health::{Beat, HANDS_OVER, Health};
use super::pools;
use super::taint::{self, Tainter};
use crate::config::Config;

/// Changes of Nodes that wait for the task that taints them.
const QUEUE: usize = 1024;

/// The follower of all that the operator works by.
pub(super) struct Follower {
    pub(super) connection: Connection,
    pub(super) inbox: Inbox,
    /// The operator's standing, by which pools are created and nodes are tainted.
    pub(super) standing: watch::Receiver<Standing>,
    pub(super) health: Health,
}

impl Follower {
    /// Starts the tasks that the configuration needs.
    pub(super) fn start(self, config: &Config, tasks: &mut JoinSet<Result<()>>) {
        let Self {
            connection,
            inbox,
            standing,
            health,
        } = self;
        let beat = |name| health.worker(name, HANDS_OVER);
        tasks.spawn(nodes(
            connection.clone(),
            inbox.clone(),
            beat("the follower of CiliumNodes"),
        ));
        tasks.spawn(pools::follow(
            connection.clone(),
            inbox.clone(),
            beat("the follower of CiliumPodIPPools"),
        ));
        tasks.spawn(waiting_pods(
            connection.clone(),
            inbox.clone(),
            beat("the follower of pods that wait"),
        ));
        if config.pools.plain {
            tasks.spawn(pools::follow_services(
                connection.clone(),
                inbox.clone(),
                beat("the follower of ServiceCIDRs"),
            ));
        }
        if !config.pools.create.is_empty() {
            let pools = config.pools.create.clone();
            tasks.spawn(pools::create(connection.clone(), pools, standing.clone()));
        }
        let taints = config.taint.enabled.then(|| {
            let (sender, pods) = watch::channel(Vec::new());
            let (changes, changed) = mpsc::channel(QUEUE);
            let tainter = Tainter {
                nodes: objects::kubernetes_nodes(&connection.client),
                after: config.taint.after.get(),
                pods,
                standing,
                inbox: inbox.clone(),
                beat: beat("the task that taints nodes"),
            };
            tasks.spawn(taint::follow_agents(connection.clone(), sender));
            tasks.spawn(tainter.run(changed));
            changes
        });
        tasks.spawn(hosts(
            connection,
            inbox,
            taints,
            beat("the follower of Nodes"),
        ));
    }
}

/// Follows `CiliumNode` objects.
async fn nodes(connection: Connection, inbox: Inbox, beat: Beat) -> Result<()> {
    let followed = Followed {
        api: objects::cilium_nodes(&connection.client),
        name: "CiliumNodes",
        beat,
    };
    let tell = |change| inbox.give(change::of_nodes(change));
    followed.follow(&connection, tell).await;
    Ok(())
}

/// Follows Nodes, for the fleet and for the task that taints them.
async fn hosts(
    connection: Connection,
    inbox: Inbox,
    taints: Option<mpsc::Sender<Change>>,
    beat: Beat,
) -> Result<()> {
    let (inbox, taints, rest) = (&inbox, &taints, &beat.clone());
    let tell = |change: Change| async move {
        let is_taken = inbox.give(change::of_hosts(&change)).await
            && inbox.give(change::of_max_pods(&change)).await;
        if let Some(taints) = taints {
            // The task that taints has a beat of its own.
            return is_taken && rest.rest(taints.send(change)).await.is_ok();
        }
        is_taken
    };
    let followed = Followed {
        api: objects::kubernetes_nodes(&connection.client),
        name: "Nodes",
        beat,
    };
    followed.follow(&connection, tell).await;
    Ok(())
}

/// Follows pods that wait for an address.
async fn waiting_pods(connection: Connection, inbox: Inbox, beat: Beat) -> Result<()> {
    let (counts, mut counted) = watch::channel(BTreeMap::new());
    let resource = Resource {
        versions: vec![objects::pods(&connection.client)],
        lists: connection.lists.clone(),
        config: connection.watching().fields(pending::SELECTOR),
        absent: LOOK_FOR,
        settle: Duration::ZERO,
    };
    let waits = |pod: &_| pending::waits_on(pod).map(str::to_owned);
    let tell = move |all: Result<&BTreeMap<_, Option<String>>, Trouble>| {
        match all {
            Ok(all) => {
                counts.send_replace(pending::surge(all.values().flatten().cloned()));
            }
            Err(trouble) => log_trouble("pods that wait", &trouble),
        }
        !counts.is_closed()
    };
    let give = async {
        while beat.rest(counted.changed()).await.is_ok() {
            let counts = counted.borrow_and_update().clone();
            if !inbox.give(Input::Pods(counts)).await {
                return;
            }
        }
    };
    tokio::join!(resource.follow(waits, tell), give);
    Ok(())
}

/// Logs the reason that there is nothing newer of a resource.
pub(super) fn log_trouble(what: &str, trouble: &Trouble) {
    match trouble {
        Trouble::Absent => tracing::warn!("follow {what}: the API server has no such resource"),
        Trouble::Failed(cause) => tracing::warn!("follow {what}: {cause}"),
    }
}
