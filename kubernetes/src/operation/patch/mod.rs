//! Merge patches of a `CiliumNode` (RFC 7386). Each is valid for one version of the object alone
//! and leaves foreign fields unchanged. There is none without a change.
//!
//! The status is written before the spec, since an agent with an address in its spec needs the
//! address's ENI.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::allocated::{self, Blocks, Compat};
use super::node::NodeDocument;
use super::status::{EniStatus, KEYS, PUBLIC_IP};
use crate::node::handshake::Release;
use crate::node::marks;

/// The field of the static IP in `status.ipam`.
const ASSIGNED: &str = "assigned-static-ip";

/// The blocks that go back, as the status is to show them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The blocks in release.
    pub blocks: BTreeSet<IpNet>,
    /// The operator shows that it takes blocks back by the object's version alone.
    pub has_operator: bool,
    /// Changes of the words on single addresses; an entry without a word goes.
    pub words: BTreeMap<IpAddr, Option<Release>>,
}

/// The node's static IP, as `status.ipam.assigned-static-ip` is to show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaticIp {
    /// It is not known, or the node asks for none: the field stays.
    #[default]
    Kept,
    /// The node has this one.
    Assigned(Ipv4Addr),
    /// The node has none.
    Missing,
}

/// The parts of a node's status that the operator writes.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    /// The ENIs, by their id.
    pub enis: &'a BTreeMap<String, EniStatus>,
    /// The static IP.
    pub static_ip: StaticIp,
    /// The blocks in release.
    pub marks: &'a Marks,
    /// The text of the report; empty if there is none.
    pub report: &'a str,
}

/// The patch of the subresource `status` that shows the operator's parts.
#[must_use]
pub fn status(object: &Value, shown: Status<'_>) -> Option<Value> {
    let Status {
        enis,
        static_ip,
        marks,
        report,
    } = shown;
    let there = &object["status"]["eni"]["enis"];
    let mut changed = Map::new();
    for (id, eni) in enis {
        if let Some(entry) = entry(&there[id], eni) {
            changed.insert(id.clone(), entry);
        }
    }
    for id in there.as_object().into_iter().flat_map(Map::keys) {
        if !enis.contains_key(id) {
            changed.insert(id.clone(), Value::Null);
        }
    }
    let mut ipam = reported(object, report);
    let marked = marked(object, marks);
    if !marked.is_empty() {
        ipam.insert("release-ips".to_owned(), Value::Object(marked));
    }
    ipam.extend(assigned(object, static_ip).map(|it| (ASSIGNED.to_owned(), it)));
    let mut status = Map::new();
    if !ipam.is_empty() {
        status.insert("ipam".to_owned(), Value::Object(ipam));
    }
    if !changed.is_empty() {
        status.insert("eni".to_owned(), json!({"enis": changed}));
    }
    of_version(object, "status", &status)
}

/// The patch of the subresource `status` that shows this report and leaves the ENIs as they are.
#[must_use]
pub fn report(object: &Value, report: &str) -> Option<Value> {
    let ipam = reported(object, report);
    let mut status = Map::new();
    if !ipam.is_empty() {
        status.insert("ipam".to_owned(), Value::Object(ipam));
    }
    of_version(object, "status", &status)
}

/// The report that an object has.
#[must_use]
pub fn shown_report(object: &Value) -> &str {
    let error = &object["status"]["ipam"]["operator-status"]["error"];
    error.as_str().unwrap_or_default()
}

/// The change of `release-ips` that shows these marks. Single addresses in it belong to the handshake
/// with older agents, and stay without a change of their own.
fn marked(object: &Value, marks: &Marks) -> Map<String, Value> {
    let there = marks::blocks(object);
    let mut change = Map::new();
    for block in marks.blocks.difference(&there) {
        change.insert(block.to_string(), json!(marks::BLOCK_VALUE));
    }
    for block in there.difference(&marks.blocks) {
        change.insert(block.to_string(), Value::Null);
    }
    let words = marks.words.iter();
    change.extend(words.map(|(address, word)| (address.to_string(), json!(word))));
    if marks.has_operator != marks::has_operator(object) {
        let value = marks.has_operator.then_some(marks::OPERATOR_VALUE);
        change.insert(marks::OPERATOR.to_owned(), json!(value));
    }
    change
}

/// The change of `assigned-static-ip`, if there is one.
fn assigned(object: &Value, static_ip: StaticIp) -> Option<Value> {
    let wanted = match static_ip {
        StaticIp::Kept => return None,
        StaticIp::Assigned(address) => json!(address),
        StaticIp::Missing => Value::Null,
    };
    difference(&object["status"]["ipam"][ASSIGNED], &wanted)
}

/// The change of `status.ipam` that shows a report.
fn reported(object: &Value, report: &str) -> Map<String, Value> {
    let mut ipam = Map::new();
    if shown_report(object) != report {
        let error = if report.is_empty() {
            Value::Null
        } else {
            json!(report)
        };
        ipam.insert("operator-status".to_owned(), json!({"error": error}));
    }
    ipam
}

/// The patch of the spec that assigns these blocks to the node. `pre_allocate` is written if the
/// object has none.
#[must_use]
pub fn spec(
    object: &Value,
    blocks: &Blocks,
    compat: Compat,
    pre_allocate: Option<u32>,
) -> Option<Value> {
    let node = NodeDocument::read(object);
    let there = &object["spec"]["ipam"];
    let mut ipam = Map::new();
    for (key, value) in allocated::fields(&node, object, blocks, compat) {
        let difference = if key == "pools" {
            Some(value)
        } else {
            difference(&there[&key], &value)
        };
        ipam.extend(difference.map(|difference| (key, difference)));
    }
    if node.bounds.pre == 0
        && let Some(pre) = pre_allocate
    {
        ipam.insert("pre-allocate".to_owned(), json!(pre));
    }
    let mut spec = Map::new();
    if !ipam.is_empty() {
        spec.insert("ipam".to_owned(), Value::Object(ipam));
    }
    of_version(object, "spec", &spec)
}

/// The patch of an object's part, good for the version that the object has.
pub(super) fn of_version(object: &Value, part: &str, change: &Map<String, Value>) -> Option<Value> {
    let version = &object["metadata"]["resourceVersion"];
    (!change.is_empty()).then(|| json!({"metadata": {"resourceVersion": version}, part: change}))
}

/// The change of an ENI's entry; `None` where there is none. Keys that are not ours stay.
fn entry(there: &Value, eni: &EniStatus) -> Option<Value> {
    let wanted = eni.entry();
    let mut change = Map::new();
    for key in KEYS.into_iter().chain([PUBLIC_IP]) {
        let wanted = wanted.get(key).unwrap_or(&Value::Null);
        if let Some(difference) = difference(&there[key], wanted) {
            change.insert(key.to_owned(), difference);
        }
    }
    (!change.is_empty()).then_some(Value::Object(change))
}

/// The merge patch that makes one value the other; `None` where it is. Null stands for nothing.
fn difference(there: &Value, wanted: &Value) -> Option<Value> {
    if there == wanted {
        return None;
    }
    let (Some(old), Some(new)) = (there.as_object(), wanted.as_object()) else {
        return Some(wanted.clone());
    };
    let mut change = Map::new();
    for (key, value) in new {
        let old = old.get(key).unwrap_or(&Value::Null);
        change.extend(difference(old, value).map(|difference| (key.clone(), difference)));
    }
    let removed = old.keys().filter(|key| !new.contains_key(*key));
    change.extend(removed.map(|key| (key.clone(), Value::Null)));
    Some(Value::Object(change))
}

#[cfg(test)]
mod tests;
