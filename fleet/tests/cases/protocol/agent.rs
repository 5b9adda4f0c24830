//! An agent of a node: the allocator and the writer's rules, without a kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::node::{Eni, PodsOnEnis, Pools, Subnet};
use ipam::{
    Allocator, Family, Formula, Kind as _, Life, Manager, Owner, Request, Settings, State, Time,
    Want,
};
use ipnet::IpNet;
use kubernetes::node::node_pools::{self, NodeDemand, NodePools};
use kubernetes::node::{backup, marks};
use kubernetes::operation::node::NodeDocument;
use serde_json::{Value, json};

use super::foreign::size;

pub(super) type Pods = PodsOnEnis<fn(&str) -> Option<bool>>;

/// An agent.
pub(super) struct Agent {
    pub(super) name: String,
    pub(super) manager: Manager<Pods>,
    /// The object as it was seen last.
    pub(super) seen: Option<Value>,
    /// It is what the allocator goes by.
    is_in_force: bool,
    /// The last object that was, on disk.
    kept: Option<Value>,
    /// The object is one of a backup, and not in force before this time.
    barred: Option<Time>,
    /// The state on disk since the last publication.
    state: State,
    /// The claims of the last object that was in force, on disk.
    claims: Option<NodePools>,
    /// The outcome of the last write is known.
    pub(super) is_known: bool,
    /// It hears nothing of the API server until then.
    pub(super) cut_until: Time,
    pub(super) pods: BTreeSet<u32>,
    next_pod: u32,
}

fn settings() -> Settings {
    Settings {
        formula: Formula::Linear,
        in_store: [Family::V4].into(),
        release: true,
        barriers: BTreeSet::new(),
        ..Settings::default()
    }
}

fn manager(state: State, now: Time) -> Manager<Pods> {
    let (allocator, _) = Allocator::restore(settings(), state, None, now);
    Manager::new(kind(), allocator)
}

fn kind() -> Pods {
    PodsOnEnis {
        pools: Pools::default(),
        skips_masquerade: |_| Some(false),
        plain_is_native: false,
        masqueraded: BTreeSet::new(),
    }
}

fn owner(pod: u32) -> Owner {
    Owner {
        container_id: format!("pod-{pod}"),
        interface: "eth0".to_owned(),
    }
}

impl Agent {
    pub(super) fn new(name: &str, now: Time) -> Self {
        Self {
            name: name.to_owned(),
            manager: manager(State::default(), now),
            seen: None,
            is_in_force: true,
            kept: None,
            barred: None,
            state: State::default(),
            claims: None,
            is_known: true,
            cut_until: Time::default(),
            pods: BTreeSet::new(),
            next_pod: 0,
        }
    }

    pub(super) fn allocator(&self) -> &Allocator {
        self.manager.allocator()
    }

    /// The process ends and starts again. Leases are on disk, and so is what was given back, and the
    /// last object.
    pub(super) fn restart(&mut self, now: Time) {
        let state = State {
            released: self.state.released.clone(),
            ..self.allocator().state()
        };
        self.manager = manager(state, now);
        self.is_known = false;
        self.barred = None;
        self.seen = None;
        self.is_in_force = true;
        if let Some(kept) = self.kept.clone() {
            self.enforce(&kept, now);
        }
    }

    /// Takes in the object that the API server has.
    pub(super) fn observe(&mut self, object: &Value, now: Time) {
        let version = |object: &Value| {
            let text = object["metadata"]["resourceVersion"].as_str();
            text.and_then(|text| text.parse::<u64>().ok())
        };
        let document = pools(object);
        let is_back = self
            .seen
            .as_ref()
            .or(self.kept.as_ref())
            .is_some_and(|known| {
                let is_same = object["metadata"]["uid"] == known["metadata"]["uid"];
                (is_same && version(object) < version(known)) || backup::is_of_backup(object, known)
            });
        if is_back {
            self.barred.get_or_insert(now.after(backup::MENDED));
            if let Some(kept) = &self.kept {
                let bare = backup::without_claims(kept);
                self.enforce(&bare, now);
                self.kept = Some(bare);
            }
        }
        self.barred.take_if(|until| *until <= now);
        // A document without ENIs is not in force while the last one had some.
        let had_enis = self
            .allocator()
            .blocks()
            .iter()
            .any(|it| it.source.is_some());
        self.seen = Some(object.clone());
        self.is_in_force = self.barred.is_none() && !(had_enis && document.enis.is_empty());
        if self.is_in_force {
            self.kept = Some(object.clone());
            self.claims = node_pools::claims_on_enis(object);
            self.enforce(object, now);
        }
    }

    /// The allocator goes by an object from now on.
    fn enforce(&mut self, object: &Value, now: Time) {
        let document = pools(object);
        let ready = document.enis.iter().map(|eni| eni.id.clone()).collect();
        self.manager.observe(document);
        let allocator = self.manager.allocator_mut();
        allocator.set_ready(ready);
        allocator.confirm(now);
    }

    /// The pools of an object that the agent creates.
    pub(super) fn pools_of_new_object(&self) -> Value {
        json!({"spec": {"ipam": {"pools": self.claims}}})
    }

    pub(super) fn add_pod(&mut self, now: Time) {
        let owner = owner(self.next_pod);
        let request = Request {
            owner: owner.clone(),
            pod: None,
            pool: None,
            want: Want::Any(Family::V4),
        };
        if self.manager.allocate(&[request], now).is_ok() {
            self.manager.allocator_mut().claim(&owner).unwrap();
            self.pods.insert(self.next_pod);
        }
        self.next_pod += 1;
    }

    pub(super) fn remove_pod(&mut self, number: usize, now: Time) {
        let Some(pod) = self.pods.iter().nth(number).copied() else {
            return;
        };
        self.pods.remove(&pod);
        self.manager.allocator_mut().release(&owner(pod), now);
    }

    /// The merge patch that the agent would write now.
    pub(super) fn patch(&mut self, now: Time) -> Option<Value> {
        let object = self.seen.clone()?;
        let allocator = self.manager.allocator_mut();
        allocator.advance(now, |_| true);
        allocator.balance(now);
        self.state = allocator.state();
        let wanted = self.manager.wanted()?;
        let allocator = self.manager.allocator();
        let leases = allocator.leases().map(|lease| lease.address);
        let cooling = allocator.cooling().map(|cooling| cooling.address);
        let desired = NodeDemand {
            wanted,
            held: leases.chain(cooling).collect(),
            on_enis: ["default".to_owned()].into(),
            agent: Some("1.0.0".to_owned()),
            flat: None,
        };
        let there = node_pools::pools_of(&object)?;
        let next = if self.is_in_force {
            desired.next(&there)
        } else {
            desired.next_held(&object, &there)
        };
        desired.patch(&object, &there, next.as_ref())
    }

    /// The addresses that pods have.
    pub(super) fn held(&self) -> BTreeSet<IpAddr> {
        let leases = self.allocator().leases();
        leases.map(|lease| lease.address).collect()
    }

    /// The addresses that it can give, has given, lets rest or gave back.
    pub(super) fn known(&self) -> u64 {
        let views = self.allocator().blocks();
        let there = views.iter().filter(|view| view.life != Life::Gone);
        let states = there.map(|view| {
            let states = &view.counts;
            states.free + states.claimed + states.unclaimed + states.cooling
        });
        states.sum()
    }

    /// Checks that each block of the document is in one state of the allocator, that there are no
    /// others, and that each of their addresses is in one state.
    pub(super) fn check(&self) {
        let Some(seen) = self.seen.as_ref().filter(|_| self.is_in_force) else {
            return;
        };
        let views = self.allocator().blocks();
        let there = views.iter().filter(|view| view.life != Life::Gone);
        let there: Vec<IpNet> = there.map(|view| view.cidr).collect();
        let announced = kind().read(&pools(seen));
        let mut announced: Vec<IpNet> = announced.blocks.iter().map(|block| block.cidr).collect();
        announced.sort_unstable();
        assert_eq!(there, announced, "{}: blocks", self.name);
        let shown: u64 = there.iter().map(size).sum();
        assert_eq!(self.known(), shown, "{}: {views:#?}", self.name);
    }

    /// True if this version of its object is in force.
    pub(super) fn goes_by(&self, object: &Value) -> bool {
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        let seen = self.seen.as_ref().filter(|_| self.is_in_force);
        seen.is_some_and(|seen| version(seen) == version(object))
    }
}

/// The part of an object that is about addresses.
fn pools(object: &Value) -> ipam::node::NodePools {
    let enis = object["status"]["eni"]["enis"].as_object();
    let enis = enis.into_iter().flatten().map(|(id, eni)| {
        let list = |key: &str| eni[key].as_array().cloned().unwrap_or_default();
        let texts = |key: &str| {
            list(key)
                .into_iter()
                .filter_map(|it| Some(it.as_str()?.to_owned()))
        };
        Eni {
            id: id.clone(),
            number: u8::try_from(eni["number"].as_u64().unwrap_or(0)).unwrap(),
            mac: [2, 0, 0, 0, 0, 1],
            primary_address: eni["ip"].as_str().map(|text| text.parse().unwrap()),
            subnet: Subnet {
                id: "subnet-a".to_owned(),
                cidr: None,
                tags: None,
            },
            vpc_cidrs: vec!["10.0.0.0/8".parse().unwrap()],
            addresses: texts("addresses")
                .map(|text| text.parse().unwrap())
                .collect(),
            prefixes: texts("prefixes")
                .map(|text| text.parse().unwrap())
                .collect(),
            tags: BTreeMap::new(),
            excluded: false,
            use_primary_address: false,
        }
    });
    let document = NodeDocument::read(object);
    let allocated = document
        .allocated
        .into_iter()
        .map(|(pool, cidrs)| ipam::node::AllocatedPool {
            pool,
            edges: ipam::EdgeRules::ALL,
            cidrs: cidrs.into_iter().collect::<Vec<IpNet>>(),
        });
    ipam::node::NodePools {
        enis: enis.collect(),
        allocated: allocated.collect(),
        is_versioned: marks::has_operator(object),
        pre_allocate: Some(4),
        ..ipam::node::NodePools::default()
    }
}
