//! Things that hold whatever happens.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ec2_fake::{AttachState, InstanceState};
use fleet::Task;
use serde_json::Value;

use super::{Bed, CLUSTER};

impl Bed {
    /// Every address that an object shows is of one node, and EC2 has it on that node's ENI.
    pub(crate) fn assert_true(&self, what: &str) {
        self.cloud.check().unwrap();
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, object) in &self.api.objects {
            let instance = object["spec"]["instance-id"].as_str().unwrap();
            let state = self.cloud.instance(instance).map(|it| it.state);
            if state != Some(InstanceState::Running) {
                continue;
            }
            for (id, entry) in enis(object) {
                for address in texts(&entry["addresses"]) {
                    let other = owners.insert(address, name);
                    assert_eq!(other, None, "{what}: {address} of {name} has two owners");
                    let eni = self.cloud.interface(id);
                    let eni = eni.unwrap_or_else(|| panic!("{what}: {name} shows {id}"));
                    let is_there = eni.attachment.as_ref().is_some_and(|it| {
                        it.instance == instance && it.state != AttachState::Detaching
                    });
                    assert!(is_there, "{what}: {id} is not attached to {instance}");
                    let address: IpAddr = address.parse().unwrap();
                    let has = eni.addresses.nets().any(|net| net.contains(&address));
                    assert!(has, "{what}: {id} has no {address}");
                }
            }
        }
    }

    /// The operator has nothing left to do: a look at every node brings no call and no write. What it
    /// would bring was missed when it became due.
    pub(crate) fn assert_at_rest(&mut self, what: &str) {
        let at = self.at();
        let list = self.api.list();
        self.fleet.take(list, at);
        let works = self.fleet.work(at).into_iter().map(|work| work.task);
        let missed: Vec<Task> = works
            .filter(|it| matches!(it, Task::Call(_) | Task::Patch { .. }))
            .collect();
        assert!(missed.is_empty(), "{what}: missed {missed:#?}");
    }

    /// ENIs that the cluster made: all are attached, and go with their instance.
    pub(crate) fn assert_no_leaks(&self, what: &str) {
        for eni in self.cloud.interfaces() {
            if eni
                .tags
                .get(cloud::object::tags::CLUSTER)
                .map(String::as_str)
                != Some(CLUSTER)
            {
                continue;
            }
            let attachment = eni.attachment.as_ref();
            let attachment = attachment.unwrap_or_else(|| panic!("{what}: {} is loose", eni.id));
            assert!(
                attachment.delete_on_termination,
                "{what}: {} is unmarked",
                eni.id
            );
        }
    }

    /// Throttled calls among all, in percent.
    pub(crate) fn throttled(&self) -> f64 {
        let all = self.cloud.log().count();
        let throttled = self
            .cloud
            .log()
            .filter(|it| it.error.as_deref() == Some("RequestLimitExceeded"));
        let count = |n: usize| f64::from(u32::try_from(n).unwrap());
        count(throttled.count()) * 100.0 / count(all.max(1))
    }
}

pub(crate) fn enis(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let enis = object["status"]["eni"]["enis"].as_object();
    enis.into_iter().flatten()
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    let list = list.as_array().into_iter().flatten();
    list.map(|it| it.as_str().unwrap())
}
