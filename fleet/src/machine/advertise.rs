//! Addresses that nodes can have, as extended resources of the Node, for the scheduler.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use cloud::InstanceId;
use cloud::want::{Capacity, most_addresses};
use ipam::{Family, Time};
use kubernetes::operation::node::DEFAULT_POOL;
use serde_json::{Map, Value, json};

use super::{Fleet, Pending};
use crate::input::{Moment, Written};
use crate::member::Member;
use crate::work::Task;

/// The numbers of all nodes are compared this often.
const PACE: Duration = Duration::from_secs(10);
/// Nodes that are written at once. The others follow at the next comparison.
const AT_ONCE: usize = 200;
/// The longest name of an extended resource, without its domain.
const LONGEST: usize = 63;

/// The numbers of a node, by the name of the extended resource.
pub(super) type Numbers = BTreeMap<String, u64>;

/// The numbers that Nodes have.
#[derive(Debug, Default)]
pub(crate) struct Advertised {
    written: BTreeMap<String, Numbers>,
    /// The reasons of writes that failed, by Node.
    faults: BTreeMap<String, String>,
    next: Time,
    /// The last Node that was written. Those after it come first.
    last: String,
}

impl Advertised {
    /// Begins an epoch: another leader may have written others.
    pub(super) fn begin(&mut self) {
        self.written.clear();
        self.faults.clear();
    }

    /// Handles the removal of a Node.
    pub(super) fn lose(&mut self, name: &str) {
        self.written.remove(name);
        self.faults.remove(name);
    }

    /// The reason that a Node has not its numbers.
    pub(crate) fn fault(&self, name: &str) -> Option<String> {
        let fault = self.faults.get(name)?;
        Some(format!(
            "extended resources of the Node are not written: {fault}"
        ))
    }
}

impl Fleet {
    /// Writes the numbers that changed.
    pub(super) fn advertise(&mut self, at: Moment) {
        let is_due = at.now >= self.nodes.advertised.next && self.may_change(at.now);
        if !self.settings.pools.advertised || !is_due {
            return;
        }
        self.nodes.advertised.next = at.now.after(PACE);
        let free = self.free_of_pools();
        let mut changed = Vec::new();
        let last = self.nodes.advertised.last.clone();
        let after = (Bound::Excluded(last.clone()), Bound::Unbounded);
        let members = &self.nodes.members;
        let in_turn = members.range(after).chain(members.range(..=last));
        for (name, member) in in_turn {
            if changed.len() == AT_ONCE {
                break;
            }
            let numbers = self.numbers(name, member, &free);
            let known = self.nodes.advertised.written.get(name);
            if known != Some(&numbers) && !member.is_left_alone() {
                let body = patch(known, &numbers);
                changed.push((name.clone(), numbers, body));
            }
        }
        if let Some((name, _, _)) = changed.last() {
            self.nodes.advertised.last.clone_from(name);
        }
        for (name, numbers, body) in changed {
            let task = Task::Advertise {
                name: name.clone(),
                body,
            };
            self.works
                .open(Pending::Advertise { name, numbers }, task, at.now);
        }
    }

    /// Handles the answer to a write. A failed write is repeated at the next comparison.
    pub(super) fn advertised(&mut self, name: String, numbers: Numbers, written: &Written) {
        let advertised = &mut self.nodes.advertised;
        let fault = match written {
            Written::Done(_) => {
                advertised.faults.remove(&name);
                advertised.written.insert(name, numbers);
                return;
            }
            Written::Failed { reason, .. } => reason.as_str(),
            Written::Conflict => "another writer came first",
            Written::Gone => "there is no such Node",
        };
        advertised.faults.insert(name, fault.to_owned());
    }

    /// The addresses that are free in each plain pool.
    fn free_of_pools(&self) -> BTreeMap<(String, Family), u64> {
        let mut all = BTreeMap::new();
        for (name, pool) in &self.plain.pools {
            let Some(spec) = pool.document.plain.as_ref().filter(|it| !it.is_deleted) else {
                continue;
            };
            for (family, space) in self.plain.ledger.view(name).spaces {
                let mask = spec.spaces.get(&family).map_or(0, |it| it.mask);
                let addresses = spec.edges.usable_of_length(family, mask);
                let blocks = space.blocks.saturating_sub(space.taken);
                let free = u64::try_from(addresses).unwrap_or(u64::MAX);
                all.insert((name.clone(), family), blocks.saturating_mul(free));
            }
        }
        all
    }

    /// The addresses that a node has or can have, by resource.
    fn numbers(
        &self,
        name: &str,
        member: &Member,
        free: &BTreeMap<(String, Family), u64>,
    ) -> Numbers {
        let mut all = Numbers::new();
        for ((pool, family), free) in free {
            if pool == DEFAULT_POOL && member.instance().is_some() {
                continue;
            }
            let has = self.plain.ledger.usable(name, pool, *family);
            let has = u64::try_from(has).unwrap_or(u64::MAX);
            all.extend(resource(*family, pool).map(|it| (it, has.saturating_add(*free))));
        }
        let of_enis = self.most_of_enis(member);
        let default = resource(Family::V4, DEFAULT_POOL).zip(of_enis);
        all.extend(default);
        all
    }

    /// Number of addresses that a node's ENIs have for the pool `default`, or could get within the
    /// room of its subnets.
    fn most_of_enis(&self, member: &Member) -> Option<u64> {
        let instance = member.instance()?;
        let limits = self
            .topology
            .facts
            .limits
            .get(member.node.instance_type.as_ref()?)?;
        let rules = &member.node.rules;
        let capacity = Capacity {
            first_index: rules.first_index,
            prefixes: rules.prefixes && limits.prefixes,
            use_primary: rules.use_primary,
            ..Capacity::default()
        };
        let most = most_addresses(limits, &capacity);
        // ENIs of other pools take their part of what the instance can have.
        let (attached, _) = self.count(instance, member);
        let default = self.default_addresses(member);
        let room = self.room(instance, member)?;
        let attachable = u64::from(most.saturating_sub(attached)).min(room);
        let all = u64::from(default) + attachable;
        let bound = u64::from(member.node.marks.max);
        Some(if bound > 0 { all.min(bound) } else { all })
    }

    /// Free IPv4 addresses of the subnets of a node's ENIs, and of those where it can get ENIs.
    fn room(&self, instance: &InstanceId, member: &Member) -> Option<u64> {
        let location = member.node.location.as_ref()?;
        let subnets = &self.topology.facts.subnets;
        let rules = location.rules().iter();
        let eligible = rules.flat_map(|rule| location.eligible(*rule, subnets));
        let enis = self.memory.inventory.of_instance(instance);
        let own = enis.filter_map(|eni| subnets.get(&eni.placement.subnet));
        let all: BTreeMap<_, _> = eligible.chain(own).map(|it| (&it.id, it)).collect();
        let room = all.into_values().map(|it| {
            let taken = self.memory.pressure.taken(&it.id);
            u64::from(it.free.saturating_sub(taken))
        });
        Some(room.sum())
    }
}

/// The name of the resource of a pool's family; none for a pool whose name is too long.
fn resource(family: Family, pool: &str) -> Option<String> {
    let name = format!("{}-{pool}", family.name());
    (name.len() <= LONGEST).then(|| format!("towpath.dev/{name}"))
}

/// The merge patch of the Node's status.
fn patch(known: Option<&Numbers>, numbers: &Numbers) -> Value {
    let gone = known.into_iter().flat_map(BTreeMap::keys);
    let mut capacity: Map<String, Value> = gone.map(|it| (it.clone(), Value::Null)).collect();
    for (resource, number) in numbers {
        capacity.insert(resource.clone(), json!(number.to_string()));
    }
    json!({"status": {"capacity": capacity}})
}
