//! Demand and kept blocks always cover the waiting pods: random sequences of events of kubelet, a
//! runtime, an operator and time.

use std::collections::BTreeMap;

use ipam::{Allocator, Family, Formula, Life};
use proptest::prelude::*;

use crate::support::{V4, V6, at, fresh, net, owner, settings};
use crate::waiting::{asks, attempt, plain_blocks, pod};

const POOLS: [&str; 2] = ["mars", "venus"];
/// Blocks of each pool and family come one after the other, this long.
const LENGTHS: [(u8, u8); 3] = [(32, 128), (31, 127), (28, 124)];

#[derive(Clone, Debug)]
enum Op {
    /// A new sandbox of a pod, deleted at once where it gets nothing.
    Add {
        pod: usize,
        pool: usize,
        families: usize,
    },
    /// A pod that runs ends, and one of its name follows.
    Del(usize),
    /// The object of a pod that waits is deleted, and one of its name follows.
    Delete(usize),
    Pass(u64),
    /// The operator assigns the requested blocks, of one family or of both.
    Grant(usize),
    /// The node gives back what it can spare.
    GiveBack,
}

fn op() -> impl Strategy<Value = Op> {
    let pod = 0_usize..6;
    let add = (pod.clone(), 0..POOLS.len(), 0_usize..4);
    prop_oneof![
        8 => add.prop_map(|(pod, pool, families)| Op::Add { pod, pool, families }),
        2 => pod.clone().prop_map(Op::Del),
        1 => pod.prop_map(Op::Delete),
        3 => prop::sample::select(vec![1, 12, 22, 60, 300]).prop_map(Op::Pass),
        4 => (0_usize..3).prop_map(Op::Grant),
        4 => Just(Op::GiveBack),
    ]
}

fn families(n: usize) -> Vec<Family> {
    match n {
        0 => vec![V4],
        1 => vec![V6],
        _ => vec![V4, V6],
    }
}

/// Addresses that a pod waits for: the pool of each family, and the end of the wait.
type Wish = BTreeMap<Family, (usize, u64)>;

struct Run {
    allocator: Allocator,
    blocks: Vec<(&'static str, String)>,
    given: u32,
    length: (u8, u8),
    now: u64,
    sandboxes: u32,
    uids: BTreeMap<usize, u32>,
    running: BTreeMap<usize, String>,
    waiting: BTreeMap<usize, Wish>,
}

impl Run {
    fn new(formula: Formula, in_store: &str, length: usize) -> Self {
        let mut run = Self {
            allocator: fresh(settings(formula, in_store)),
            blocks: Vec::new(),
            given: 0,
            length: LENGTHS[length],
            now: 0,
            sandboxes: 0,
            uids: BTreeMap::new(),
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
        };
        run.announce();
        run
    }

    fn announce(&mut self) {
        let blocks: Vec<_> = self.blocks.iter().map(|(pool, b)| (*pool, &**b)).collect();
        let mut announcement = plain_blocks(&blocks);
        announcement.plain = POOLS.map(str::to_owned).into();
        self.allocator.observe(announcement);
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Add {
                pod,
                pool,
                families,
            } => self.add(pod, pool, families),
            Op::Del(pod) => {
                if let Some(sandbox) = self.running.remove(&pod) {
                    self.allocator.release(&owner(&sandbox), at(self.now));
                    *self.uids.entry(pod).or_default() += 1;
                }
            }
            Op::Delete(n) => {
                let of = self.pod(n);
                self.allocator.forget(&of);
                self.waiting.remove(&n);
                if !self.running.contains_key(&n) {
                    *self.uids.entry(n).or_default() += 1;
                }
            }
            Op::Pass(seconds) => {
                self.now += seconds;
                self.allocator.advance(at(self.now), |_| true);
                let now = self.now;
                self.waiting.retain(|_, wish| {
                    wish.retain(|_, (_, until)| *until > now);
                    !wish.is_empty()
                });
            }
            Op::Grant(which) => self.grant(&families(which)),
            Op::GiveBack => self.give_back(),
        }
        self.check();
    }

    fn pod(&self, n: usize) -> ipam::Pod {
        pod(
            &format!("pod-{n}"),
            self.uids.get(&n).copied().unwrap_or_default(),
        )
    }

    fn add(&mut self, n: usize, pool: usize, of: usize) {
        if self.running.contains_key(&n) {
            return;
        }
        self.sandboxes += 1;
        let sandbox = format!("sandbox-{}", self.sandboxes);
        let families = families(of);
        let requests = asks(&sandbox, &self.pod(n), POOLS[pool], &families);
        let wish = self.waiting.entry(n).or_default();
        if attempt(&mut self.allocator, &requests, self.now).is_ok() {
            wish.clear();
            self.running.insert(n, sandbox);
        } else {
            let until = self.now + 300;
            wish.extend(families.iter().map(|family| (*family, (pool, until))));
        }
        self.waiting.retain(|_, wish| !wish.is_empty());
    }

    /// Adds blocks until the demand is met.
    fn grant(&mut self, of: &[Family]) {
        for (pool, needed) in self.allocator.demand() {
            let Some(pool) = POOLS.into_iter().find(|known| *known == pool) else {
                continue;
            };
            for (family, needed) in needed.into_iter().filter(|(f, _)| of.contains(f)) {
                while self.allocator.counts(pool, family).total < needed {
                    let first = self.given * 16;
                    self.given += 1;
                    let block = match family {
                        V4 => format!(
                            "10.{}.{}.{}/{}",
                            first >> 16,
                            (first >> 8) & 255,
                            first & 255,
                            self.length.0
                        ),
                        V6 => format!("fd00::{first:x}/{}", self.length.1),
                    };
                    self.blocks.push((pool, net(&block).to_string()));
                    self.announce();
                }
            }
        }
    }

    fn give_back(&mut self) {
        let before = self.free();
        let released = self.allocator.give_back_plain();
        let after = self.free();
        for (key, count) in self.allocator.waiters() {
            let of = |free: &BTreeMap<_, u64>| free.get(&key).copied().unwrap_or(0);
            let needed = count.min(of(&before));
            assert!(of(&after) >= needed, "{key:?}: {released:?} is waited for");
        }
        let released: Vec<String> = released.iter().map(ToString::to_string).collect();
        self.blocks.retain(|(_, block)| !released.contains(block));
        self.announce();
    }

    /// Addresses that can be given, by pool and family.
    fn free(&self) -> BTreeMap<(String, Family), u64> {
        let mut free = BTreeMap::new();
        for block in self.allocator.blocks() {
            if let (Some(pool), Life::Usable) = (block.pool, block.life) {
                *free.entry((pool, Family::of_net(block.cidr))).or_default() += block.counts.free;
            }
        }
        free
    }

    fn check(&self) {
        let mut expected: BTreeMap<(String, Family), u64> = BTreeMap::new();
        for (family, (pool, _)) in self.waiting.values().flatten() {
            *expected
                .entry((POOLS[*pool].to_owned(), *family))
                .or_default() += 1;
        }
        assert_eq!(self.allocator.waiters(), expected, "who waits");
        let demand = self.allocator.demand();
        for ((pool, family), waiting) in expected {
            let in_use = self.allocator.counts(&pool, family).in_use();
            let requested = demand.get(&pool).and_then(|of| of.get(&family)).copied();
            assert!(
                requested >= Some(in_use + waiting),
                "{pool} {family}: {demand:?}"
            );
        }
    }

    /// Checks the end: once all requested blocks are there, all waiting pods get addresses. Then no
    /// pod waits, and in the end no block is kept.
    fn finish(mut self, in_store: &str) {
        self.step(&Op::Grant(2));
        self.step(&Op::GiveBack);
        for (n, wish) in self.waiting.clone() {
            for (family, (pool, _)) in wish {
                self.sandboxes += 1;
                let sandbox = format!("sandbox-{}", self.sandboxes);
                let requests = asks(&sandbox, &self.pod(n), POOLS[pool], &[family]);
                attempt(&mut self.allocator, &requests, self.now).unwrap();
            }
        }
        assert!(self.allocator.waiters().is_empty());
        let requests = asks("last", &pod("late", 1), "mars", &[V4, V6]);
        attempt(&mut self.allocator, &requests, self.now).ok();
        for lease in self.allocator.leases().cloned().collect::<Vec<_>>() {
            self.allocator.release(&lease.owner, at(self.now));
        }
        self.allocator.advance(at(self.now + 301), |_| true);
        assert!(self.allocator.waiters().is_empty(), "its time is over");
        self.allocator.give_back_plain();
        if in_store.is_empty() {
            assert_eq!(self.free(), BTreeMap::new(), "all of it can go");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::cases(), ..ProptestConfig::default() })]

    #[test]
    fn demand_and_blocks_are_there_for_those_who_wait(
        ops in prop::collection::vec(op(), 1..60),
        is_linear in proptest::bool::ANY,
        in_store in prop::sample::select(vec!["", "mars=2", "mars=1,venus=5"]),
        length in 0..LENGTHS.len(),
    ) {
        let formula = if is_linear { Formula::Linear } else { Formula::RoundedUp };
        let mut run = Run::new(formula, in_store, length);
        for op in &ops {
            run.step(op);
        }
        run.finish(in_store);
    }
}
