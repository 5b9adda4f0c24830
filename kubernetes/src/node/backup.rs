//! Objects of an API server that was restored from a backup.
//!
//! The status of such an object can lack ENIs that pods use by now, and can show addresses that EC2
//! has taken back. The object of before is the better one, until the operator has had time to write
//! the status as EC2 has it.

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

use super::marks;
use super::node_pools::{blocks_of_enis, claims_on_enis};

/// Time in which an operator reads the ENIs of all nodes and writes their status.
pub const MENDED: Duration = Duration::from_mins(1);

/// True if an object must be of a backup, by the last one that was known. Either it is another
/// object and has ENIs already, or it claims blocks that the known one did not have: an agent claims
/// only what it has seen. Older versions are for the caller.
#[must_use]
pub fn is_of_backup(object: &Value, known: &Value) -> bool {
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    if uid(known) != uid(object) {
        return !blocks_of_enis(object).is_empty();
    }
    // Without the agent's mark, an operator may have written the claims.
    marks::has_agent(object) && !claims(object).is_subset(&blocks_of_enis(known))
}

/// The object without claims on its ENIs: no other address of them is given before the claims are
/// written again. It has no uid either, so every object of the API server that has ENIs counts as
/// one of a backup beside it.
#[must_use]
pub fn without_claims(object: &Value) -> Value {
    let blocks = blocks_of_enis(object);
    let mut bare = object.clone();
    let metadata = bare.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        metadata.remove("uid");
    }
    let allocated = bare.pointer_mut("/spec/ipam/pools/allocated");
    let entries = allocated
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for cidrs in entries.filter_map(|entry| entry["cidrs"].as_array_mut()) {
        cidrs.retain(|cidr| {
            let net = cidr.as_str().and_then(|text| text.parse::<IpNet>().ok());
            net.is_none_or(|net| !blocks.contains(&net))
        });
    }
    bare
}

/// The claims on the object's ENIs.
fn claims(object: &Value) -> BTreeSet<IpNet> {
    let pools = claims_on_enis(object).into_iter();
    let entries = pools.flat_map(|pools| pools.allocated);
    let cidrs = entries.flat_map(|entry| entry.cidrs);
    cidrs.filter_map(|cidr| cidr.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(uid: &str, shown: &[&str], claimed: &[&str]) -> Value {
        json!({
            "metadata": {"uid": uid, "annotations": {marks::AGENT: "1.0.0"}},
            "spec": {"ipam": {"pools": {"allocated": [{"pool": "default", "cidrs": claimed}]}}},
            "status": {"eni": {"enis": {"eni-1": {"addresses": shown}}}}
        })
    }

    #[test]
    fn claims_that_the_agent_cannot_have_made_are_those_of_a_backup() {
        let both = ["10.0.0.1", "10.0.0.2"];
        let known = object("a", &both, &["10.0.0.1/32"]);
        let claimed = object("a", &both, &["10.0.0.1/32", "10.0.0.2/32"]);
        assert!(!is_of_backup(&claimed, &known), "a claim that was written");
        let fewer = object("a", &both[..1], &["10.0.0.1/32"]);
        assert!(!is_of_backup(&fewer, &claimed));
        assert!(is_of_backup(&claimed, &fewer));
        let fresh = object("a", &both, &["10.0.0.1/32"]);
        assert!(!is_of_backup(&fresh, &fewer), "a fresh block");
        let mut operators = claimed;
        operators["metadata"]["annotations"] = Value::Null;
        assert!(!is_of_backup(&operators, &fewer), "an operator claims too");
    }

    #[test]
    fn claims_on_plain_blocks_stay() {
        let object = object("a", &["10.0.0.1"], &["10.0.0.1/32", "172.16.0.0/28", "bad"]);
        let left = without_claims(&object);
        let cidrs = &left["spec"]["ipam"]["pools"]["allocated"][0]["cidrs"];
        assert_eq!(*cidrs, json!(["172.16.0.0/28", "bad"]));
        assert!(is_of_backup(&object, &left), "also the same one");
        assert_eq!(without_claims(&json!({"spec": 1})), json!({"spec": 1}));
    }

    #[test]
    fn another_object_that_has_enis_is_one_of_a_backup() {
        let known = object("a", &["10.0.0.1"], &[]);
        assert!(is_of_backup(&object("b", &["10.0.0.1"], &[]), &known));
        assert!(!is_of_backup(&object("b", &[], &["10.0.0.1/32"]), &known));
    }
}
