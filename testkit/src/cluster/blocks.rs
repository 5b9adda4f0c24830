//! Blocks of pools that no ENI backs: the stand-in for the operator gives them until what a node asks
//! for is there.

use ipnet::IpNet;
use serde_json::{Value, json};

/// The pool that it gives blocks of.
pub const PLAIN_POOL: &str = "mars";

/// The pool's document.
#[must_use]
pub fn plain_pool() -> Value {
    json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": PLAIN_POOL},
        "spec": {
            "ipv4": {"cidrs": ["172.30.0.0/16"], "maskSize": 28},
            "ipv6": {"cidrs": ["fd00:30::/64"], "maskSize": 124}
        }
    })
}

/// The `allocated` of a node whose number this is, once it has got the next block of each family that
/// it asks for; `None` where nothing is missing. `given` counts the blocks, so none is given twice.
pub(super) fn next(node: &Value, number: usize, given: &mut usize) -> Option<Value> {
    let pools = &node["spec"]["ipam"]["pools"];
    let mut entries = pools["requested"].as_array()?.iter();
    let needed = &entries.find(|entry| entry["pool"] == PLAIN_POOL)?["needed"];
    let allocated = pools["allocated"].as_array().cloned().unwrap_or_default();
    let of_pool = allocated.iter().filter(|entry| entry["pool"] == PLAIN_POOL);
    let cidrs = of_pool.flat_map(|entry| entry["cidrs"].as_array().into_iter().flatten());
    let there: Vec<IpNet> = cidrs
        .filter_map(|cidr| cidr.as_str()?.parse().ok())
        .collect();
    let is_missing = |field: &str, is_v4: bool| {
        let of_family = there.iter().filter(|net| net.addr().is_ipv4() == is_v4);
        needed[field].as_u64().unwrap_or(0) > of_family.count() as u64 * 14
    };
    let mut new = Vec::new();
    if is_missing("ipv4-addrs", true) {
        new.push(format!("172.30.{number}.{}/28", *given * 16));
    }
    if is_missing("ipv6-addrs", false) {
        new.push(format!("fd00:30::{number:x}:{:x}/124", *given * 16));
    }
    if new.is_empty() {
        return None;
    }
    *given += 1;
    let entry = json!({"pool": PLAIN_POOL, "cidrs": new});
    let all: Vec<Value> = allocated.into_iter().chain([entry]).collect();
    Some(json!(all))
}
