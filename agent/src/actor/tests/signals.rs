//! When the writer of the node's document hears that there is something to write.

use std::time::Duration;

use api::ids::PodRef;
use ipam::node::AllocatedPool;
use ipam::{EdgeRules, Family};
use kubernetes::node::node_pools::NodeDemand;
use tokio::time::timeout;

use super::allocation::{ask, wanted};
use super::demand::document;
use super::*;
use crate::actor::policy::PolicyFiles;
use crate::cluster::DemandQuery;
use crate::server::{AddressCommand, AddressRequest, AddressSpec};

const MARS: &str = "mars";

/// A running agent, and those who speak with it.
struct Agent {
    commands: mpsc::Sender<Command>,
    demand_queries: mpsc::Sender<DemandQuery>,
    signals: Arc<Signals>,
    generation: u64,
    _document: watch::Sender<NodeSource>,
}

/// Runs an agent.
fn run(actor: Actor<ModelHost>) -> (impl Future<Output = ()>, Agent) {
    let (commands, from_socket) = mpsc::channel(1);
    let (demand_queries, from_writer) = mpsc::channel(1);
    let (document, node) = watch::channel(actor.documents.source.clone());
    let agent = Agent {
        commands,
        demand_queries,
        signals: Arc::clone(&actor.signals),
        generation: actor.documents.source.generation,
        _document: document,
    };
    let streams = Streams {
        commands: from_socket,
        node,
        files: PolicyFiles::default(),
        demand_queries: from_writer,
    };
    let running = actor.run(streams, std::future::pending());
    (running, agent)
}

impl Agent {
    /// The demand that the writer is given.
    async fn demand(&self) -> NodeDemand {
        let (reply, answer) = oneshot::channel();
        let generation = self.generation;
        let ask = DemandQuery { generation, reply };
        self.demand_queries.send(ask).await.unwrap();
        answer.await.unwrap().unwrap()
    }

    /// Number of requested addresses of the pool, and number of its kept blocks.
    async fn wants(&self) -> (u64, usize) {
        let wanted = self.demand().await.wanted;
        let requested = wanted
            .requested
            .get(MARS)
            .and_then(|of| of.get(&Family::V4));
        let kept = wanted.allocated.iter().filter(|kept| kept.pool == MARS);
        let kept = kept.map(|kept| kept.cidrs.len()).sum();
        (requested.copied().unwrap_or_default(), kept)
    }

    /// Waits until the writer is to look.
    async fn is_told(&self) {
        let signal = timeout(Duration::from_secs(10), self.signals.changed.notified());
        signal.await.expect("the writer is signalled");
    }

    /// Lets the writer look at each signal, until the node wants this many addresses.
    async fn wants_at_last(&self, expected: (u64, usize)) {
        loop {
            self.is_told().await;
            if self.wants().await == expected {
                return;
            }
        }
    }

    /// Gives an owner an address of the pool; true if there was one.
    async fn lease(&self, name: &str) -> bool {
        self.lease_for(name, None).await
    }

    /// Leases an address to an owner, for a pod if one is named; true if it was given.
    async fn lease_for(&self, name: &str, pod: Option<&str>) -> bool {
        let pools = [(Family::V4, MARS.to_owned())].into();
        let families = ask(&[Family::V4]);
        let request = AddressRequest {
            owner: endpoint(name, &[]).owner,
            addresses: BTreeSet::new(),
            ask: Box::new(AddressSpec {
                pools,
                pod: pod.map(pod_ref),
                ..families
            }),
        };
        let (reply, answer) = oneshot::channel();
        let command = Command::Addresses(AddressCommand::Lease(request, reply));
        self.commands.send(command).await.unwrap();
        answer.await.unwrap().is_ok()
    }

    async fn release(&self, name: &str) {
        let (reply, answer) = oneshot::channel();
        let owner = endpoint(name, &[]).owner;
        let command = Command::Addresses(AddressCommand::Release(owner, reply));
        self.commands.send(command).await.unwrap();
        answer.await.unwrap().unwrap();
    }
}

fn pod_ref(name: &str) -> PodRef {
    PodRef {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: Some(name.to_owned()),
    }
}

/// An agent that has read a document with blocks of a plain pool, of which it pre-allocates four
/// addresses.
async fn boot(machine: &mut Machine, blocks: &[&str]) -> Actor<ModelHost> {
    let config = "ipam: {cooldown: 1, pre-allocate: 'default=8,mars=4'}";
    machine.config = Config::parse(config).unwrap();
    let mut actor = machine.boot();
    actor.intent.settings.plain_is_native = true;
    document(&mut actor, |node| {
        node.allocated.push(AllocatedPool {
            pool: MARS.to_owned(),
            edges: EdgeRules::default(),
            cidrs: blocks.iter().map(|block| block.parse().unwrap()).collect(),
        });
    });
    actor.run_pass().await;
    actor
}

/// As many addresses cool down as were in use at the writer's last check. So it finds nothing to
/// write, and has no reason of its own to check again.
#[tokio::test]
async fn the_writer_is_told_when_addresses_have_cooled_down() {
    let mut machine = Machine::new();
    let actor = boot(&mut machine, &["172.20.0.0/28", "172.20.0.16/28"]).await;
    let nat = actor.observers.nat.clone();
    let (running, agent) = run(actor);
    let script = async {
        let names: Vec<String> = (0..15).map(|n| format!("pod-{n}")).collect();
        for name in &names {
            assert!(agent.lease(name).await);
        }
        agent.wants_at_last((20, 2)).await;
        for name in &names {
            agent.release(name).await;
        }
        // They are needed until then.
        agent.wants_at_last((20, 2)).await;
        nat.swept();
        agent.wants_at_last((4, 1)).await;
    };
    tokio::select! {
        () = running => panic!("it has ended"),
        () = script => {}
    }
}

#[tokio::test]
async fn the_writer_is_told_of_owners_that_wait_and_wait_no_more() {
    let mut machine = Machine::new();
    let actor = boot(&mut machine, &[]).await;
    let deletes = machine.state.path().join("pending-deletes");
    let (running, agent) = run(actor);
    let script = async {
        assert!(!agent.lease("x").await);
        agent.wants_at_last((8, 0)).await;
        // The end of what got nothing changes nothing, also where the plugin left it on disk.
        agent.release("x").await;
        fs::create_dir(&deletes).unwrap();
        let delete = r#"{"version": 1, "container-id": "x", "interface": "eth0"}"#;
        fs::write(deletes.join("x.json"), delete).unwrap();
        for _ in 0..4 {
            assert!(!agent.lease_for("y", Some("web")).await);
            agent.release("y").await;
        }
        agent.is_told().await;
        assert_eq!(agent.wants().await, (8, 0));
        for pod in ["a", "b", "c"] {
            assert!(!agent.lease_for(pod, Some(pod)).await);
        }
        agent.wants_at_last((12, 0)).await;
        for pod in ["a", "web"] {
            agent
                .commands
                .send(Command::PodGone(pod_ref(pod)))
                .await
                .unwrap();
        }
        agent.wants_at_last((8, 0)).await;
    };
    tokio::select! {
        () = running => panic!("it has ended"),
        () = script => {}
    }
}

/// The writer does not check repeatedly while nothing changes.
#[tokio::test]
async fn the_writer_is_told_nothing_where_nothing_has_changed() {
    let mut machine = Machine::new();
    let mut actor = boot(&mut machine, &["172.20.0.0/28"]).await;
    actor.addresses.demand(&actor.intent).unwrap();
    for _ in 0..3 {
        actor.run_pass().await;
    }
    assert!(!actor.addresses.take_news());
    let pod = wanted("x", ask(&[]));
    actor.with_addresses(pod).unwrap();
    assert!(actor.addresses.take_news());
    assert!(!actor.addresses.take_news(), "once");
}
