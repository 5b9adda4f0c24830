//! Pools, as they are read: bindings to ENIs, and plain pools.

use ipam::Time;
use kubernetes::operation::bindings;
use kubernetes::operation::report::Reason;
use serde_json::Value;

use super::Fleet;
use crate::member::{Member, Obstacle};

impl Fleet {
    /// Updates all pools.
    pub(super) fn set_pools(&mut self, objects: Vec<Value>) {
        self.set_bindings(&objects);
        if self.settings.pools.plain {
            self.set_plain_pools(objects);
        }
    }

    fn set_bindings(&mut self, objects: &[Value]) {
        let is_first = self.cluster.bindings.is_none();
        let last = self.cluster.bindings.take().unwrap_or_default();
        let read = bindings::read(objects, &last);
        if is_first || read != last {
            let bound = read.iter();
            let bound = bound.filter_map(|(name, it)| Some((name.clone(), it.binding.clone()?)));
            self.topology.facts.pools = bound.collect();
            self.nodes.dirty.extend(self.nodes.members.keys().cloned());
        }
        self.cluster.bindings = Some(read);
    }

    /// Updates the plain pools. Nodes that request blocks of a changed one are planned again.
    fn set_plain_pools(&mut self, objects: Vec<Value>) {
        if !self.plain.set_pools(objects) {
            return;
        }
        self.plain.next_look = Time::default();
        let wanting = self.nodes.members.iter().filter(|(_, member)| {
            let mut pools = member.document.demand.requested.keys();
            pools.any(|pool| self.plain.pools.contains_key(pool))
        });
        self.nodes
            .dirty
            .extend(wanting.map(|(name, _)| name.clone()));
        self.nodes.dirty.extend(self.plain.short.keys().cloned());
    }

    /// Pools that a node requests and whose annotations cannot be read.
    pub(super) fn bad_pools(&self, member: &Member) -> Vec<Obstacle> {
        let requested = member.node.pools.keys();
        let problems = requested.filter_map(|name| {
            self.cluster
                .bindings
                .as_ref()?
                .get(name)?
                .problem
                .as_deref()
        });
        problems
            .map(|problem| Obstacle::new(Reason::BadPool, problem))
            .collect()
    }
}
