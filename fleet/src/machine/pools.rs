//! Pools that are bound to ENIs.

use kubernetes::operation::bindings;
use kubernetes::operation::report::Reason;
use serde_json::Value;

use super::Fleet;
use crate::member::{Member, Obstacle};

impl Fleet {
    /// Takes in all pools.
    pub(super) fn set_pools(&mut self, objects: &[Value]) {
        let last = self.bindings.take().unwrap_or_default();
        let read = bindings::read(objects, &last);
        let is_first = self.topology.facts.pools.is_empty() && last.is_empty();
        if is_first || read != last {
            let bound = read.iter();
            let bound = bound.filter_map(|(name, it)| Some((name.clone(), it.binding.clone()?)));
            self.topology.facts.pools = bound.collect();
            self.dirty.extend(self.members.keys().cloned());
        }
        self.bindings = Some(read);
    }

    /// Pools that a node asks for and whose annotations cannot be read.
    pub(super) fn bad_pools(&self, member: &Member) -> Vec<Obstacle> {
        let asked = member.node.pools.keys();
        let problems = asked.filter_map(|name| self.bindings.as_ref()?.get(name)?.problem.as_deref());
        problems
            .map(|problem| Obstacle::new(Reason::BadPool, problem))
            .collect()
    }
}
