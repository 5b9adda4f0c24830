//! Objects of the API server.

pub(super) mod removal;
pub(super) mod writes;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Fleet, Key};
use crate::input::Moment;
use crate::member::{Member, is_older};

impl Fleet {
    /// Handles a list of all objects.
    pub(super) fn set_objects(&mut self, objects: Vec<Value>, at: Moment) {
        let names: BTreeSet<String> = objects.iter().map(name_of).collect();
        let gone: Vec<String> = self
            .nodes
            .members
            .keys()
            .filter(|name| !names.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.drop_member(&name);
        }
        for object in objects {
            self.put(object, at);
        }
    }

    /// Handles an object of a watch, unless the answer to a write had a later version.
    pub(super) fn set_object(&mut self, object: Value, at: Moment) {
        let known = self.nodes.members.get(&name_of(&object));
        if known.is_some_and(|member| is_older(&object, &member.object)) {
            return;
        }
        self.put(object, at);
    }

    pub(super) fn lose_object(&mut self, name: &str, uid: &str) {
        // The object of that name can be another one by now.
        let is_it = |member: &Member| uid.is_empty() || member.document.meta.uid == uid;
        if self.nodes.members.get(name).is_some_and(is_it) {
            self.drop_member(name);
        }
    }

    pub(super) fn put(&mut self, object: Value, at: Moment) {
        let name = name_of(&object);
        if name.is_empty() {
            return;
        }
        let pending = self.cluster.waiting.get(&name).copied().unwrap_or(0);
        let before = self
            .nodes
            .members
            .get(&name)
            .and_then(|it| it.instance().cloned());
        if let Some(member) = self.nodes.members.get_mut(&name) {
            member.set(object, &self.settings, at.now);
        } else {
            let member = Member::new(object, pending, &self.settings, at.now);
            self.nodes.members.insert(name.clone(), member);
        }
        let after = self
            .nodes
            .members
            .get(&name)
            .and_then(|it| it.instance().cloned());
        if before != after {
            self.move_to(&name, before.as_ref(), after.as_ref());
        }
        if let Some(member) = self.nodes.members.get(&name) {
            self.plain.set_node(&member.document);
        }
        if let Some(vpc) = self.nodes.members.get(&name).and_then(Member::vpc) {
            self.reads.add_vpcs([vpc.clone()].into());
        }
        self.nodes.dirty.insert(name);
    }

    fn drop_member(&mut self, name: &str) {
        let Some(member) = self.nodes.members.remove(name) else {
            return;
        };
        self.plain.lose_node(name);
        self.calls.queue.remove(&Key::Node(name.to_owned()));
        self.nodes.timers.set(name, None);
        self.nodes.dirty.remove(name);
        if self
            .nodes
            .progress
            .get(name)
            .is_some_and(|it| !it.is_busy())
        {
            self.nodes.progress.remove(name);
        }
        self.move_to(name, member.instance(), None);
    }

    /// Keeps the nodes of each instance.
    fn move_to(
        &mut self,
        name: &str,
        before: Option<&cloud::InstanceId>,
        after: Option<&cloud::InstanceId>,
    ) {
        if let Some(names) = before.and_then(|it| self.nodes.by_instance.get_mut(it)) {
            names.remove(name);
        }
        if let Some(instance) = after {
            let names = self.nodes.by_instance.entry(instance.clone()).or_default();
            names.insert(name.to_owned());
        }
        for instance in before.into_iter().chain(after) {
            self.settle_rivals(instance);
        }
    }

    /// One node alone has an instance: the oldest object that names it.
    fn settle_rivals(&mut self, instance: &cloud::InstanceId) {
        let names = self
            .nodes
            .by_instance
            .get(instance)
            .cloned()
            .unwrap_or_default();
        if names.is_empty() {
            self.nodes.by_instance.remove(instance);
            self.memory.inventory.forget(instance);
        }
        let created = |name: &String| {
            let object = self.nodes.members.get(name).map(|it| &it.object);
            let at = object.and_then(|it| it["metadata"]["creationTimestamp"].as_str());
            at.unwrap_or_default().to_owned()
        };
        let first = names.iter().min_by_key(|name| (created(name), *name));
        let first = first.cloned();
        for name in &names {
            if let Some(member) = self.nodes.members.get_mut(name) {
                member.rival = first.clone().filter(|first| first != name);
            }
        }
        self.nodes.dirty.extend(names);
    }

    pub(super) fn set_pods(&mut self, pods: BTreeMap<String, u32>) {
        let all = self.cluster.waiting.keys().chain(pods.keys());
        let changed = all.filter(|name| self.cluster.waiting.get(*name) != pods.get(*name));
        let changed: BTreeSet<String> = changed.cloned().collect();
        self.cluster.waiting = pods;
        for name in changed {
            let count = self.cluster.waiting.get(&name).copied().unwrap_or(0);
            if let Some(member) = self.nodes.members.get_mut(&name) {
                member.node.pending = if self.settings.surge { count } else { 0 };
                self.nodes.dirty.insert(name);
            }
        }
    }

    /// Adds the VPCs of all nodes to those that are read.
    pub(super) fn add_all_vpcs(&mut self) {
        let vpcs = self.nodes.members.values().filter_map(Member::vpc).cloned();
        let vpcs = vpcs.chain(self.settings.vpcs.iter().cloned()).collect();
        self.reads.add_vpcs(vpcs);
    }
}

fn name_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}
