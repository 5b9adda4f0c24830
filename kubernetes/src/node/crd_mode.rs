//! Single addresses (`ipam.mode: crd`): the operator lists them in `spec.ipam.pool`. The node
//! writes their owners, and the answers to release requests, into `status.ipam`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::Family;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::node::handshake::{Release, Seen};

/// The single addresses of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlatPool {
    /// The addresses for pods, each with its ENI's id (`resource`).
    pub addresses: BTreeMap<IpAddr, String>,
    /// `status.ipam.release-ips`, of addresses that can be read.
    pub release: BTreeMap<IpAddr, Release>,
}

/// An entry of `spec.ipam.pool` and of `status.ipam.used`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// Its owner: a pod's namespace and name, in `used`.
    #[serde(
        deserialize_with = "nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub owner: String,
    /// The ENI's id.
    #[serde(
        deserialize_with = "nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub resource: String,
}

fn nullable<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The node's part of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlatOutlook {
    /// The addresses in use.
    pub used: BTreeMap<IpAddr, Entry>,
    /// The answers to the operator's release requests.
    pub release: BTreeMap<IpAddr, Release>,
}

/// The fields of a family: the pool, who has what, what goes back.
const FIELDS: [(Family, &str, &str, &str); 2] = [
    (Family::V4, "pool", "used", "release-ips"),
    (Family::V6, "ipv6-pool", "ipv6-used", "release-ipv6s"),
];

impl FlatPool {
    /// Reads an object. An unreadable entry, or one for an address that is in use, is left out.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let mut flat = Self::default();
        for (family, pool, _, release) in FIELDS {
            for (address, entry) in entries(&object["spec"]["ipam"][pool], family) {
                let Ok(entry) = Entry::deserialize(entry) else {
                    continue;
                };
                if entry.owner.is_empty() {
                    flat.addresses.insert(address, entry.resource);
                }
            }
            for (address, state) in entries(&object["status"]["ipam"][release], family) {
                if let Ok(state) = Release::deserialize(state) {
                    flat.release.insert(address, state);
                }
            }
        }
        flat
    }

    /// The inputs of the handshake.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen {
            pool: self.addresses.keys().copied().collect(),
            release: self.release.clone(),
        }
    }
}

impl FlatOutlook {
    /// The merge patch of the status that says this, good only for the object that it was computed
    /// from; `None` where the object says it.
    #[must_use]
    pub fn patch(&self, object: &Value) -> Option<Value> {
        let there = &object["status"]["ipam"];
        let mut ipam = Map::new();
        for (family, _, used, release) in FIELDS {
            let of_family = |address: &IpAddr| Family::of(*address) == family;
            let mine = self.used.iter().filter(|(address, _)| of_family(address));
            let mine = mine.map(|(address, entry)| (address.to_string(), json!(entry)));
            ipam.extend(difference(used, mine.collect(), &there[used]));
            let mine = self
                .release
                .iter()
                .filter(|(address, _)| of_family(address));
            let mine: Map<_, _> = mine
                .map(|(address, state)| (address.to_string(), json!(state)))
                .collect();
            ipam.extend(difference(release, mine, &there[release]));
        }
        (!ipam.is_empty()).then(|| status_patch(object, &ipam))
    }
}

/// The addresses that pods have, by `status.ipam.used` and `ipv6-used`.
#[must_use]
pub fn used(object: &Value) -> BTreeSet<IpAddr> {
    let of_family = FIELDS.iter().flat_map(|(family, _, used, _)| {
        entries(&object["status"]["ipam"][used], *family).map(|(address, _)| address)
    });
    of_family.collect()
}

/// The merge patch that clears what an agent with single addresses has left of who has which: the
/// operator takes it for an agent of that kind. `None` where there is nothing.
#[must_use]
pub fn cleared(object: &Value) -> Option<Value> {
    let there = &object["status"]["ipam"];
    let left = FIELDS.iter().map(|(_, _, used, _)| *used);
    let left = left.filter(|used| there[used].as_object().is_some_and(|map| !map.is_empty()));
    let cleared: Map<_, _> = left.map(|used| (used.to_owned(), Value::Null)).collect();
    (!cleared.is_empty()).then(|| status_patch(object, &cleared))
}

fn status_patch(object: &Value, ipam: &Map<String, Value>) -> Value {
    let metadata = &object["metadata"];
    json!({
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "status": {"ipam": ipam},
    })
}

/// A field that is to be all of `mine`, where it is not: what else is there goes.
fn difference(key: &str, mut mine: Map<String, Value>, there: &Value) -> Option<(String, Value)> {
    let there = there.as_object();
    let is_same = match there {
        Some(there) => *there == mine,
        None => mine.is_empty(),
    };
    let gone: BTreeSet<_> = there.into_iter().flat_map(Map::keys).collect();
    for key in gone {
        mine.entry(key.clone()).or_insert(Value::Null);
    }
    (!is_same).then(|| (key.to_owned(), mine.into()))
}

/// The entries of a map whose keys are addresses of a family.
fn entries(map: &Value, family: Family) -> impl Iterator<Item = (IpAddr, &Value)> {
    let all = map.as_object().into_iter().flatten();
    let read = all.filter_map(|(address, entry)| Some((address.parse().ok()?, entry)));
    read.filter(move |(address, _)| Family::of(*address) == family)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn object() -> Value {
        json!({
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "spec": {"ipam": {
                "pool": {
                    "10.0.0.1": {"resource": "eni-1"},
                    "10.0.0.2": {"resource": "eni-2", "owner": "somebody"},
                    "10.0.0.3": {"resource": "eni-1", "owner": null},
                    "10.0.0.4": {"resource": 7},
                    "none": {}
                },
                "ipv6-pool": {"2001:db8::1": {"resource": "eni-1"}}
            }},
            "status": {"ipam": {
                "used": {"10.0.0.1": {"owner": "a/b", "resource": "eni-1"}},
                "release-ips": {"10.0.0.9": "marked-for-release", "10.0.0.8": "odd"},
                "operator-status": {}
            }}
        })
    }

    #[test]
    fn what_is_nobodys_is_for_pods() {
        let flat = FlatPool::read(&object());
        let expected = ["10.0.0.1", "10.0.0.3", "2001:db8::1"].map(|text| (ip(text), "eni-1"));
        let expected = expected.map(|(address, eni)| (address, eni.to_owned()));
        assert_eq!(flat.addresses, expected.into());
        let release = [(ip("10.0.0.9"), Release::MarkedForRelease)];
        assert_eq!(flat.release, release.into());
        assert_eq!(FlatPool::read(&json!({})), FlatPool::default());
        assert_eq!(used(&object()), [ip("10.0.0.1")].into());
    }

    #[test]
    fn only_what_differs_is_written_and_what_is_over_goes() {
        let entry = |owner: &str| Entry {
            owner: owner.to_owned(),
            resource: "eni-1".to_owned(),
        };
        let mut desired = FlatOutlook {
            used: [(ip("10.0.0.1"), entry("a/b"))].into(),
            release: [(ip("10.0.0.9"), Release::MarkedForRelease)].into(),
        };
        let mut there = object();
        there["status"]["ipam"]["release-ips"] = json!({"10.0.0.9": "marked-for-release"});
        assert_eq!(desired.patch(&there), None);
        desired.used = [(ip("2001:db8::1"), entry("a/c"))].into();
        desired.release = [(ip("10.0.0.9"), Release::ReadyForRelease)].into();
        assert_eq!(
            desired.patch(&there).unwrap(),
            json!({
                "metadata": {"uid": "u", "resourceVersion": "7"},
                "status": {"ipam": {
                    "used": {"10.0.0.1": null},
                    "ipv6-used": {"2001:db8::1": {"owner": "a/c", "resource": "eni-1"}},
                    "release-ips": {"10.0.0.9": "ready-for-release"}
                }}
            })
        );
        assert_eq!(FlatOutlook::default().patch(&json!({})), None);
    }

    #[test]
    fn what_another_mode_left_is_cleared_and_nothing_else() {
        assert_eq!(
            cleared(&object()).unwrap()["status"],
            json!({"ipam": {"used": null}})
        );
        let mut none = object();
        none["status"]["ipam"]["used"] = json!({});
        assert_eq!(cleared(&none), None);
        assert_eq!(cleared(&json!({})), None);
    }
}
