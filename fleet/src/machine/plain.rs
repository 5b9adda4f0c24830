//! Blocks of plain pools: granted to nodes, and marked in their pools.

use std::collections::{BTreeMap, BTreeSet};

use ipam::Time;
use ipam::cluster::Takeover;
use ipnet::IpNet;
use kubernetes::operation::node::{Instance, NodeDocument};
use kubernetes::operation::plain;
use kubernetes::operation::report::Reason;
use serde_json::Value;

use super::{Fleet, Pending};
use crate::input::{Moment, Written};
use crate::member::Member;
use crate::plain::{Opening, Unread};
use crate::reads::GATHERED;
use crate::work::{About, Event, Part, Task, WorkId};

impl Fleet {
    /// Runs the due steps for plain pools: the list of a new leader, marks of pools, and nodes that
    /// may get released blocks.
    pub(super) fn tend_pools(&mut self, at: Moment) {
        if !self.settings.pools.plain || at.now < self.plain.next_look {
            return;
        }
        self.plain.next_look = at.now.after(GATHERED);
        self.plain.ledger.reserve(self.reserved());
        let unread = self.lacking();
        if unread != self.plain.unread {
            self.plain.unread = unread;
            let unmet: Vec<String> = self.unmet().map(str::to_owned).collect();
            self.nodes.dirty.extend(unmet);
        }
        if self.plain.ledger.freed() != self.plain.freed {
            self.plain.freed = self.plain.ledger.freed();
            self.nodes.dirty.extend(self.plain.short.keys().cloned());
        }
        if !self.may_change(at.now) {
            return;
        }
        if let Opening::Unlisted(from) = self.plain.opening
            && from <= at.now
            && self.plain.has_marks()
        {
            self.plain.opening = Opening::Listing;
            self.works.open(Pending::List, Task::List, at.now);
        }
        let names: Vec<String> = self.plain.pools.keys().cloned().collect();
        for name in names {
            self.mark_pool(&name, at);
            self.report_pool(&name);
        }
    }

    /// Addresses that are no pool's.
    fn reserved(&self) -> BTreeMap<IpNet, String> {
        let mut all = BTreeMap::new();
        for vpc in self.topology.vpcs.values() {
            for cidr in vpc.others.iter().chain([&vpc.primary]) {
                all.insert(*cidr, format!("VPC {}", vpc.id));
            }
        }
        for cidr in self.cluster.services.iter().flatten() {
            all.insert(*cidr, "the cluster's services".to_owned());
        }
        all
    }

    /// The reads without which a block could overlap with other addresses of the cluster.
    fn lacking(&self) -> Option<Unread> {
        if self.cluster.services.is_none() {
            return Some(Unread::Services);
        }
        self.reads.unread_vpc().cloned().map(Unread::Vpc)
    }

    /// Handles the list of all nodes. The watch removes the nodes that the list lacks.
    pub(super) fn listed(&mut self, objects: Result<Vec<Value>, String>, at: Moment) {
        let objects = match objects {
            Ok(objects) => objects,
            Err(_reason) => {
                self.plain.opening = Opening::Unlisted(at.now.after(GATHERED));
                return;
            }
        };
        for object in objects {
            self.set_object(object, at);
        }
        let unmet: BTreeSet<String> = self.unmet().map(str::to_owned).collect();
        self.nodes.dirty.extend(unmet.iter().cloned());
        self.plain.opening = Opening::Listed(Takeover::begin(unmet));
        self.plain.next_look = at.now;
    }

    /// Nodes that want blocks of plain pools.
    fn unmet(&self) -> impl Iterator<Item = &str> {
        let unmet = self.nodes.members.iter().filter(|(name, member)| {
            let demand = self.plain.demand(&member.document);
            self.plain.ledger.is_unmet(name, &demand)
        });
        unmet.map(|(name, _)| name.as_str())
    }

    /// Writes the blocks that a node lacks, or the change that has to precede them. Returns the
    /// time of the node's next check.
    pub(super) fn write_plain(&mut self, name: &str, at: Moment) -> Option<Time> {
        if !self.settings.pools.plain {
            return None;
        }
        let (part, body) = if self.plain.opening.awaits(name) {
            let id = self.works.next_id();
            (Part::Metadata, plain::touch(&format!("{} {id}", at.date)))
        } else if self.plain.may_grant() {
            let body = self.grant(name)?;
            let member = self.nodes.members.get(name)?;
            if member.has_dropped(Part::Spec, &body, at.now) {
                return None;
            }
            (Part::Spec, body)
        } else {
            return None;
        };
        let pause = self.nodes.members.get(name)?.writes.pause(at.now);
        if pause.is_some() {
            return pause;
        }
        self.send_patch(name, part, body, at.now);
        None
    }

    /// The patch that grants a node what it lacks.
    fn grant(&mut self, name: &str) -> Option<Value> {
        let member = self.nodes.members.get(name)?;
        // ENIs serve the default pool of a node with an instance.
        let is_of_enis = member.document.instance.id.is_some();
        if self.settings.pools.migrate_pod_cidrs
            && !is_of_enis
            && let Some(body) = plain::migrated(&member.object)
        {
            return Some(body);
        }
        let demand = self.plain.demand(&member.document);
        if demand.is_empty() || !self.plain.has_any() {
            self.plain.short.remove(name);
            return None;
        }
        let demand = self.plain.grantable(demand);
        let grant = self.plain.ledger.grant(name, &demand);
        let known = self.plain.short.get(name).map_or(&[][..], Vec::as_slice);
        if known != grant.shortfalls {
            // The report of the node is another one now.
            self.nodes.dirty.insert(name.to_owned());
            self.plain.short.insert(name.to_owned(), grant.shortfalls);
        }
        if self.plain.short.get(name).is_some_and(Vec::is_empty) {
            self.plain.short.remove(name);
        }
        let member = self.nodes.members.get(name)?;
        plain::granted(&member.object, &grant.blocks, |pool| self.plain.edges(pool))
    }

    /// Records that a node's metadata were changed, and that the new object is known.
    pub(super) fn touched(&mut self, name: &str) {
        if self.plain.opening.awaits(name) {
            self.plain.opening.touched(name);
            if self.plain.opening.is_over() {
                self.plain.next_look = Time::default();
                let unmet: Vec<String> = self.unmet().map(str::to_owned).collect();
                self.nodes.dirty.extend(unmet);
            }
        }
    }

    /// Marks a pool as in use, or lets it go.
    fn mark_pool(&mut self, name: &str, at: Moment) {
        let Some(pool) = self.plain.pools.get(name) else {
            return;
        };
        if pool.writes.is_busy() || pool.writes.pause(at.now).is_some() {
            return;
        }
        // Before, nodes can have blocks that are not known, or can get them by a late write.
        if !self.plain.opening.is_over() {
            return;
        }
        let is_used = self.plain.ledger.is_used(name);
        let in_use = self.plain.ledger.in_use(name);
        let Some(body) = pool.document.marks(&in_use, is_used) else {
            return;
        };
        let task = Task::PatchPool {
            name: name.to_owned(),
            version: pool.document.api_version.clone(),
            body,
        };
        let pending = Pending::Pool {
            name: name.to_owned(),
        };
        let id = self.works.open(pending, task, at.now);
        if let Some(pool) = self.plain.pools.get_mut(name) {
            pool.writes.begin(id);
        }
    }

    /// Handles the answer to a patch of a pool.
    pub(super) fn marked(&mut self, name: &str, id: WorkId, written: Written, at: Moment) {
        let Some(pool) = self.plain.pools.get_mut(name) else {
            return;
        };
        if !pool.writes.end(id) {
            return;
        }
        match written {
            Written::Done(object) => {
                pool.writes.succeed();
                if let Some(object) = object.filter(|it| it["metadata"]["name"] == name) {
                    self.plain.set_pool(*object);
                }
                self.look_at_wanting(name);
            }
            // The next event has the pool as it is, or says that it is gone.
            Written::Conflict | Written::Gone => pool.writes.conflict(at.now),
            Written::Failed {
                reason,
                retry_after,
            } => {
                pool.writes.fail(reason, retry_after, at.now);
                self.look_at_wanting(name);
            }
        }
    }

    /// Marks the nodes that request blocks of a pool as dirty.
    fn look_at_wanting(&mut self, pool: &str) {
        let wanting = self.nodes.members.iter().filter(|(_, member)| {
            let requested = &member.document.demand.requested;
            requested.contains_key(pool)
        });
        self.nodes
            .dirty
            .extend(wanting.map(|(name, _)| name.clone()));
    }

    /// Records events about a pool's faults, each once.
    fn report_pool(&mut self, name: &str) {
        let faults = self.pool_faults(name);
        let Some(pool) = self.plain.pools.get_mut(name) else {
            return;
        };
        let uid = pool.document.uid.clone();
        let texts: BTreeSet<String> = faults.iter().map(|(_, text)| text.clone()).collect();
        let reported = std::mem::replace(&mut pool.reported, texts);
        for (reason, text) in faults {
            if reported.contains(&text) {
                continue;
            }
            let about = About::Pool {
                name: name.to_owned(),
                uid: uid.clone(),
            };
            self.works.record(Event {
                about,
                reason,
                text,
            });
        }
    }

    /// The faults of a pool.
    pub(crate) fn pool_faults(&self, name: &str) -> Vec<(Reason, String)> {
        let Some(pool) = self.plain.pools.get(name) else {
            return Vec::new();
        };
        let Some(spec) = &pool.document.plain else {
            return Vec::new();
        };
        let problems = pool.document.problems.iter().map(ToString::to_string);
        let refusals = self.plain.ledger.refusals(name).map(ToString::to_string);
        let refused = problems.chain(refusals);
        let mut all: Vec<_> = refused.map(|text| (Reason::PoolRefused, text)).collect();
        if let Some(fault) = pool.writes.fault() {
            let text = format!("patch finalizers and annotations: {fault}");
            all.push((Reason::CallFailed, text));
        }
        if spec.is_deleted && self.plain.ledger.is_used(name) {
            let text = "the pool is being deleted, and goes once no node has a block of it";
            all.push((Reason::PoolInUse, text.to_owned()));
        }
        all
    }

    /// Returns true if a node needs nothing of EC2: it names no instance, and its demand is of
    /// plain pools.
    pub(crate) fn is_plain_only(&self, member: &Member) -> bool {
        let document: &NodeDocument = &member.document;
        let names_none = document.instance == Instance::default();
        let wants = document.demand.requested.len();
        self.settings.pools.plain
            && self.plain.has_any()
            && names_none
            && wants > 0
            && self.plain.demand(document).len() == wants
    }
}
