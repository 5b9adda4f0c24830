//! Blocks of plain pools in `spec.ipam.pools.allocated`. The operator adds them, and the agent
//! removes those that it releases.

use ipam::EdgeRules;
use ipam::cluster::Blocks;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::patch::of_version;

/// The annotation by which a new leader changes an object, so that its version is another one.
pub const EPOCH: &str = "ipam.towpath.dev/epoch";
/// The pool that blocks of `spec.ipam.podCIDRs` become.
pub const MIGRATED: &str = "default";

/// The patch of the spec that assigns these additional blocks to the node. `edges` are the rules
/// for the first and last addresses of a pool's blocks.
#[must_use]
pub fn granted(
    object: &Value,
    blocks: &Blocks,
    edges: impl Fn(&str) -> EdgeRules,
) -> Option<Value> {
    let there = object["spec"]["ipam"]["pools"]["allocated"].as_array();
    let mut all = there.cloned().unwrap_or_default();
    let mut is_changed = false;
    for (pool, blocks) in blocks {
        let new: Vec<IpNet> = blocks.iter().copied().collect();
        if new.is_empty() {
            continue;
        }
        let place = all.iter().position(|entry| entry["pool"] == json!(pool));
        let place = place.unwrap_or_else(|| {
            all.push(entry(pool, edges(pool)));
            all.len() - 1
        });
        let Some(entry) = all.get_mut(place).and_then(Value::as_object_mut) else {
            continue;
        };
        is_changed |= add(entry, &new);
    }
    let mut spec = Map::new();
    if is_changed {
        all.sort_by(|one, other| name(one).cmp(name(other)));
        spec.insert("ipam".to_owned(), json!({"pools": {"allocated": all}}));
    }
    of_version(object, "spec", &spec)
}

/// The patch that changes nothing but an object's version. `epoch` has to differ from any before.
#[must_use]
pub fn touch(epoch: &str) -> Value {
    json!({"metadata": {"annotations": {EPOCH: epoch}}})
}

/// The patch that converts the node's `podCIDRs` to blocks of the default pool; none without any.
#[must_use]
pub fn migrated(object: &Value) -> Option<Value> {
    let ipam = &object["spec"]["ipam"];
    let cidrs = ipam["podCIDRs"]
        .as_array()
        .filter(|cidrs| !cidrs.is_empty())?;
    let others = ipam["pools"]["allocated"].as_array().into_iter().flatten();
    let mut all: Vec<Value> = others.cloned().collect();
    let place = all.iter().position(|entry| entry["pool"] == MIGRATED);
    let place = place.unwrap_or_else(|| {
        all.push(json!({"pool": MIGRATED}));
        all.len() - 1
    });
    let entry = all.get_mut(place).and_then(Value::as_object_mut)?;
    let texts = cidrs.iter().filter_map(Value::as_str);
    let nets: Vec<IpNet> = texts.filter_map(|text| text.parse().ok()).collect();
    if nets.len() != cidrs.len() {
        return None;
    }
    add(entry, &nets);
    let change = json!({"podCIDRs": null, "pools": {"allocated": all}});
    let spec = Map::from_iter([("ipam".to_owned(), change)]);
    of_version(object, "spec", &spec)
}

/// A new entry. As in Cilium's own documents, a flag that is false is left out.
fn entry(pool: &str, edges: EdgeRules) -> Value {
    let mut entry = Map::from_iter([("pool".to_owned(), json!(pool))]);
    for (key, is_set) in [
        ("allowFirstIP", edges.allow_first),
        ("allowLastIP", edges.allow_last),
    ] {
        entry.extend(is_set.then(|| (key.to_owned(), json!(true))));
    }
    Value::Object(entry)
}

/// Adds blocks to an entry. Returns true if it had not all of them.
fn add(entry: &mut Map<String, Value>, new: &[IpNet]) -> bool {
    let there = entry.get("cidrs").and_then(Value::as_array);
    let mut texts: Vec<Value> = there.cloned().unwrap_or_default();
    let has = |texts: &[Value], block: &IpNet| {
        let nets = texts.iter().filter_map(Value::as_str);
        let mut nets = nets.filter_map(|text| text.parse::<IpNet>().ok());
        nets.any(|net| net.trunc() == *block)
    };
    let before = texts.len();
    for block in new {
        if !has(&texts, block) {
            texts.push(json!(block.to_string()));
        }
    }
    let is_changed = texts.len() != before;
    texts.sort_by_key(|text| text.as_str().and_then(|text| text.parse::<IpNet>().ok()));
    entry.insert("cidrs".to_owned(), Value::Array(texts));
    is_changed
}

fn name(entry: &Value) -> &str {
    entry["pool"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests;
