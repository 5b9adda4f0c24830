//! Things that hold whatever happens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ec2_fake::{AttachState, InstanceState};
use fleet::{Part, Task, Written};
use ipnet::IpNet;
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

    /// The addresses that an object shows and that EC2 does not have on that ENI of its instance.
    pub(super) fn untrue(&self) -> BTreeSet<(String, String)> {
        let shown = self.api.objects.iter().flat_map(|(name, object)| {
            let instance = object["spec"]["instance-id"].as_str().unwrap_or_default();
            enis(object).flat_map(move |(id, entry)| {
                let lists = [&entry["addresses"], &entry["ipv6-prefixes"]];
                let all = lists.into_iter().flat_map(texts);
                all.map(move |text| (name, instance, id, text))
            })
        });
        let lost = shown.filter(|(_, instance, id, text)| {
            let net: Option<IpNet> = text.parse().ok();
            let net = net.unwrap_or_else(|| text.parse::<IpAddr>().unwrap().into());
            let eni = self.cloud.interface(id);
            let has = eni.is_some_and(|eni| {
                let attachment = eni.attachment.as_ref();
                let is_its = attachment.is_some_and(|it| it.instance == **instance);
                is_its && eni.addresses.nets().any(|it| it.contains(&net))
            });
            !has
        });
        lost.map(|(name, _, _, text)| (name.clone(), text.to_owned()))
            .collect()
    }

    /// Carries out the operator's patch of an object, which an agent can read then.
    pub(super) fn patch(&mut self, name: &str, part: Part, body: &Value) -> Written {
        let written = self.api.patch(name, part, body, self.now);
        if let Written::Done(Some(object)) = &written
            && self.api.lacks.is_none()
        {
            assert_readable(part, body, object);
        }
        written
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

/// An agent can read what a patch of the operator left: each ENI of it is complete, its addresses are
/// those of its subnet, and no address of a flat pool is on an ENI that the status lacks.
fn assert_readable(part: Part, body: &Value, object: &Value) {
    let whole = &object["status"]["eni"]["enis"];
    let written = body["status"]["eni"]["enis"].as_object();
    for (id, _) in written
        .into_iter()
        .flatten()
        .filter(|(_, it)| !it.is_null())
    {
        let eni = &whole[id];
        assert_eq!(eni["id"], **id, "{eni}");
        let mac: Vec<_> = eni["mac"].as_str().unwrap().split(':').collect();
        assert!(mac.len() == 6, "{eni}");
        assert!(
            mac.iter()
                .all(|it| it.len() == 2 && u8::from_str_radix(it, 16).is_ok()),
            "{eni}"
        );
        assert!(eni["number"].is_u64(), "{eni}");
        let net = |at: &Value| -> Option<IpNet> { at.as_str().map(|it| it.parse().unwrap()) };
        let subnet = net(&eni["subnet"]["cidr"]);
        assert!(subnet.is_some() || eni["ip"].is_null(), "{eni}");
        assert!(net(&eni["vpc"]["primary-cidr"]).is_some(), "{eni}");
        let addresses: Vec<IpAddr> = texts(&eni["addresses"])
            .map(|it| it.parse().unwrap())
            .collect();
        let is_inside = |it: &IpAddr| subnet.is_some_and(|subnet| subnet.contains(it));
        assert!(addresses.iter().all(is_inside), "{eni}");
        for prefix in texts(&eni["prefixes"]) {
            let prefix: IpNet = prefix.parse().unwrap();
            assert_eq!((prefix.prefix_len(), prefix.trunc()), (28, prefix), "{eni}");
            let inside = addresses.iter().filter(|it| prefix.contains(*it));
            assert_eq!(inside.count(), 16, "{prefix} {eni}");
        }
        for prefix in texts(&eni["ipv6-prefixes"]) {
            assert_eq!(prefix.parse::<IpNet>().unwrap().prefix_len(), 80, "{eni}");
        }
    }
    let flat = object["spec"]["ipam"]["pool"].as_object();
    for (address, entry) in flat.into_iter().flatten().filter(|_| part == Part::Spec) {
        let eni = &whole[entry["resource"].as_str().unwrap()];
        assert!(
            texts(&eni["addresses"]).any(|it| it == address),
            "{address} {eni}"
        );
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
