//! Pods that wait for addresses: kubelet, a runtime and an operator around the actor, on a clock of
//! their own.

use std::time::Duration;

use api::ids::PodRef;
use ipam::node::AllocatedPool;
use ipam::{EdgeRules, Family};
use kubernetes::node::node_pools::{Allocated, NodePools};
use kubernetes::node::write_pacing::{Outcome, Pace};

use super::allocation::{ask, give, wanted};
use super::demand::document;
use super::*;
use crate::server::AddressSpec;

const MARS: &str = "mars";
/// A moment, in milliseconds, and how far the clock goes at once.
const TICK: u64 = 100;

/// A pod, and the time of its next sandbox.
struct Pod {
    name: String,
    families: Vec<Family>,
    due: u64,
    attempts: u32,
    /// When its blocks were there for the first time, and how many attempts there were by then.
    could_be_up: Option<u32>,
    is_up: bool,
}

/// A node with its actor, the object that it writes, and who else reads and writes that.
struct Cluster {
    actor: Actor<ModelHost>,
    object: NodePools,
    /// Length of the operator's blocks, and which families it gives.
    lengths: [u8; 2],
    gives: Vec<Family>,
    given: u32,
    /// When the operator answers the last write.
    answer: Option<u64>,
    pace: Pace,
    now: u64,
    pods: Vec<Pod>,
    /// The waits of kubelet, in milliseconds, one after another.
    retries: Vec<u64>,
}

fn pod_ref(name: &str, uid: u32) -> PodRef {
    PodRef {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: Some(format!("{name}-{uid}")),
    }
}

fn sandbox(id: &str, pod: &PodRef, families: &[Family]) -> EndpointRequest {
    let pools = families.iter().map(|family| (*family, MARS.to_owned()));
    let ask = AddressSpec {
        pools: pools.collect(),
        pod: Some(pod.clone()),
        ..ask(families)
    };
    wanted(id, ask)
}

impl Cluster {
    async fn new(machine: &mut Machine, config: &str, interval: u64) -> Self {
        machine.config = Config::parse(config).unwrap();
        let mut actor = machine.boot();
        actor.intent.settings.plain_is_native = true;
        document(&mut actor, |_| {});
        actor.run_pass().await;
        Self {
            actor,
            object: NodePools::default(),
            lengths: [28, 124],
            gives: Family::ALL.into(),
            given: 0,
            answer: None,
            pace: Pace::new(Duration::from_secs(interval)),
            now: 0,
            pods: Vec::new(),
            retries: vec![10_000],
        }
    }

    fn pod(&mut self, name: &str, families: &[Family]) {
        self.pods.push(Pod {
            name: name.to_owned(),
            families: families.to_vec(),
            due: self.now,
            attempts: 0,
            could_be_up: None,
            is_up: false,
        });
    }

    /// Lets time pass until all pods are up, or it is over.
    async fn run(&mut self, seconds: u64) {
        let end = self.now + seconds * 1000;
        while self.now < end && !self.pods.iter().all(|pod| pod.is_up) {
            self.tick().await;
        }
    }

    async fn tick(&mut self) {
        self.now += TICK;
        self.actor.addresses.age(Duration::from_millis(TICK));
        if self.now.is_multiple_of(1000) {
            self.actor.update_addresses();
        }
        if self.answer.is_some_and(|at| at <= self.now) {
            self.answer = None;
            self.operate();
        }
        self.kubelet().await;
        let now = Duration::from_millis(self.now);
        if self.actor.addresses.take_news() {
            self.pace.changed(now);
        }
        if self.pace.due(now) <= now {
            self.write();
            self.pace.written(now, Outcome::Done);
        }
    }

    async fn kubelet(&mut self) {
        for n in 0..self.pods.len() {
            let pod = &mut self.pods[n];
            if pod.is_up || pod.due > self.now {
                continue;
            }
            pod.attempts += 1;
            let request = sandbox(
                &format!("{}-{}", pod.name, pod.attempts),
                &pod_ref(&pod.name, 1),
                &pod.families,
            );
            let owner = request.owner.clone();
            let is_up = give(&mut self.actor, request).await.is_ok();
            let wait = self.retries[(n + pod.attempts as usize) % self.retries.len()];
            pod.is_up = is_up;
            pod.due = self.now + wait;
            if !is_up {
                self.actor.delete(&[owner]).await.remove(0).unwrap();
                self.pace.urgent(Duration::from_millis(self.now));
            }
        }
    }

    fn write(&mut self) {
        self.actor.update_addresses();
        let demand = self.actor.addresses.demand(&self.actor.intent).unwrap();
        if let Some(next) = demand.next(&self.object) {
            self.object = next;
            self.read();
            self.answer = Some(self.now + 300);
        }
    }

    /// The operator gives what is missing.
    fn operate(&mut self) {
        let requested = self.object.requested.clone();
        for wanted in requested.iter().filter(|wanted| wanted.pool == MARS) {
            for (family, needed) in [
                (Family::V4, wanted.needed.ipv4_addrs),
                (Family::V6, wanted.needed.ipv6_addrs),
            ] {
                while self.gives.contains(&family) && self.size(family) < needed {
                    let block = self.block(family);
                    self.object.allocated.push(Allocated {
                        pool: MARS.to_owned(),
                        allow_first: true,
                        allow_last: true,
                        cidrs: vec![block],
                    });
                }
            }
        }
        self.read();
        for pod in &mut self.pods {
            pod.could_be_up = pod.could_be_up.or_else(|| {
                let has = |family: &Family| {
                    let blocks = self.object.allocated.iter().flat_map(|of| &of.cidrs);
                    let mut blocks = blocks.filter_map(|cidr| cidr.parse().ok());
                    blocks.any(|net| Family::of_net(net) == *family && !is_of_vpc(net))
                };
                pod.families.iter().all(has).then_some(pod.attempts)
            });
        }
    }

    fn block(&mut self, family: Family) -> String {
        let first = self.given * 16;
        self.given += 1;
        let (high, low) = (first >> 8, first & 255);
        match family {
            Family::V4 => format!("172.30.{high}.{low}/{}", self.lengths[0]),
            Family::V6 => {
                let net = format!("fd00:30::{first:x}/{}", self.lengths[1]);
                net.parse::<ipnet::IpNet>().unwrap().to_string()
            }
        }
    }

    fn size(&self, family: Family) -> u64 {
        let of_mars = self.object.allocated.iter().filter(|of| of.pool == MARS);
        let nets = of_mars.flat_map(|of| &of.cidrs);
        let nets = nets.map(|cidr| cidr.parse::<ipnet::IpNet>().unwrap());
        nets.filter(|net| Family::of_net(*net) == family)
            .map(|net| 1_u64 << (net.max_prefix_len() - net.prefix_len()))
            .sum()
    }

    /// The actor reads the object.
    fn read(&mut self) {
        let pools = self.object.allocated.iter().map(|of| AllocatedPool {
            pool: of.pool.clone(),
            edges: EdgeRules::ALL,
            cidrs: of.cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        });
        let pools: Vec<AllocatedPool> = pools.collect();
        document(&mut self.actor, |node| {
            let of_mars = pools.iter().filter(|of| of.pool == MARS);
            let blocks = of_mars.flat_map(|of| of.cidrs.iter());
            node.pools
                .extend(blocks.map(|block| (*block, MARS.to_owned())));
            node.allocated = pools;
        });
        self.actor.update_addresses();
    }

    fn requested(&self, pool: &str) -> (u64, u64) {
        let mut all = self.object.requested.iter();
        let of = all.find(|of| of.pool == pool);
        of.map_or((0, 0), |of| (of.needed.ipv4_addrs, of.needed.ipv6_addrs))
    }
}

fn is_of_vpc(net: ipnet::IpNet) -> bool {
    ["10.0.0.0/8", "2001:db8::/32"]
        .iter()
        .any(|vpc| vpc.parse::<ipnet::IpNet>().unwrap().contains(&net))
}

const BOTH: &str = "ipam: {families: [ipv4, ipv6], pre-allocate: 'default=8'}";
const V4_ONLY: &str = "ipam: {families: [ipv4]}";

/// For each size of blocks and each pace of the writer and of kubelet, every pod is up with the
/// first attempt after its blocks have come. No block is assigned twice.
#[tokio::test]
async fn pods_are_up_at_the_next_attempt_after_their_blocks_came() {
    let families: [&[Family]; 3] = [&[Family::V4], &[Family::V6], &Family::ALL];
    for (of, lengths) in [
        (0, [28, 124]),
        (1, [28, 124]),
        (2, [28, 124]),
        (2, [32, 128]),
        (2, [31, 127]),
    ] {
        for interval in [5, 15] {
            for retries in [
                vec![10_000],
                vec![15_000],
                vec![22_000],
                vec![10_000, 22_000, 14_000],
            ] {
                for count in [1, 12] {
                    let case = format!("{of} {lengths:?} {interval} {retries:?} {count}");
                    let mut machine = Machine::new();
                    let config = if of == 0 { V4_ONLY } else { BOTH };
                    let mut cluster = Cluster::new(&mut machine, config, interval).await;
                    (cluster.lengths, cluster.retries) = (lengths, retries.clone());
                    for n in 0..count {
                        cluster.pod(&format!("web-{n}"), families[of]);
                    }
                    cluster.run(120).await;
                    for pod in &cluster.pods {
                        assert!(pod.is_up, "{case}: {} after {}", pod.name, pod.attempts);
                        assert_eq!(pod.attempts, 2, "{case}: {}", pod.name);
                    }
                    let blocks = cluster.given;
                    cluster.pods.clear();
                    cluster.pod("never", &[]);
                    cluster.pods[0].due = u64::MAX;
                    cluster.run(400).await;
                    assert_eq!(cluster.given, blocks, "{case}: more was given");
                    let of_families = |family| u64::from(families[of].contains(&family)) * count;
                    let used = (of_families(Family::V4), of_families(Family::V6));
                    assert_eq!(cluster.requested(MARS), used, "{case}");
                }
            }
        }
    }
}

/// An operator that gives one family late: what came first is kept.
#[tokio::test]
async fn what_one_family_has_is_kept_while_the_other_one_is_waited_for() {
    let mut machine = Machine::new();
    let mut cluster = Cluster::new(&mut machine, BOTH, 5).await;
    cluster.gives = vec![Family::V4];
    cluster.retries = vec![10_000, 22_000];
    cluster.pod("web", &Family::ALL);
    cluster.run(100).await;
    assert_eq!((cluster.given, cluster.requested(MARS)), (1, (1, 1)));
    let pools = cluster.actor.list_pools();
    let of_mars = pools
        .iter()
        .filter(|pool| pool.pool.as_deref() == Some(MARS));
    let shown: Vec<_> = of_mars
        .map(|pool| (pool.waiting, pool.unavailable))
        .collect();
    assert_eq!(shown, [(1, 0), (1, 0)], "one pod, of either family");
    cluster.gives = Family::ALL.into();
    cluster.operate();
    cluster.run(23).await;
    assert!(cluster.pods[0].is_up);
}

#[tokio::test]
async fn what_was_waited_for_goes_back_once_the_pod_is_gone() {
    let mut machine = Machine::new();
    let mut cluster = Cluster::new(&mut machine, BOTH, 5).await;
    cluster.gives = vec![Family::V4];
    cluster.pod("web", &Family::ALL);
    cluster.run(30).await;
    assert_eq!(cluster.size(Family::V4), 16);
    cluster.pods[0].due = u64::MAX;
    cluster.actor.addresses.forget_pod(&pod_ref("web", 2));
    cluster.run(20).await;
    assert_eq!(cluster.requested(MARS), (1, 1), "another pod of that name");
    cluster.actor.addresses.forget_pod(&pod_ref("web", 1));
    cluster.run(20).await;
    assert_eq!(
        (cluster.requested(MARS), cluster.size(Family::V4)),
        ((0, 0), 0)
    );
}

/// The node requests nothing that cannot come, so nothing is overdue.
#[tokio::test]
async fn a_node_of_one_family_stays_ready() {
    let cases = [
        ("[ipv4]", Family::V4, None),
        ("[ipv6]", Family::V6, None),
        (
            "[ipv4, ipv6]",
            Family::V4,
            Some("pool default, IPv6: 8 addresses"),
        ),
    ];
    for (families, has, expected) in cases {
        let mut machine = Machine::new();
        machine.config = Config::parse(&format!("ipam: {{families: {families}}}")).unwrap();
        let on: Vec<Family> = machine.config.ipam.families.get().iter().copied().collect();
        let mut actor = machine.boot();
        document(&mut actor, |node| {
            for eni in node.enis.values_mut() {
                eni.blocks.retain(|block| Family::of_net(*block) == has);
            }
        });
        actor.run_pass().await;
        for _ in 0..20 {
            actor.addresses.age(Duration::from_secs(30));
            actor.update_addresses();
            let demand = actor.addresses.demand(&actor.intent).unwrap();
            let requested = demand.wanted.requested["default"].keys().copied();
            assert_eq!(requested.collect::<Vec<_>>(), on, "{families}");
        }
        let health = actor.status().await.health;
        let reasons = health.reasons.join("\n");
        match expected {
            None => assert_eq!(health.state, HealthState::Ready, "{families}: {reasons}"),
            Some(text) => assert!(reasons.contains(text), "{families}: {reasons}"),
        }
        assert!(!reasons.contains("IPv4"), "{families}: {reasons}");
    }
}
