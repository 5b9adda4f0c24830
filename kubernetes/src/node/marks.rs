//! Marks by which the agent and the operator of this project recognise each other in a
//! `CiliumNode`.
//!
//! * The agent sets the annotation [`AGENT`] if it allocates addresses of a block only after its
//!   claim of the block is written.
//! * The operator sets the key [`OPERATOR`] in `status.ipam.release-ips` if it takes blocks back
//!   only for the object's current version. Another operator writes that map as a whole, so its
//!   first write removes the key.
//! * A block in that map, as a CIDR, is being released: the status no longer shows it.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde_json::Value;

/// The annotation with the agent's version.
pub const AGENT: &str = "ipam.towpath.dev/agent";
/// The operator's key in `status.ipam.release-ips`.
pub const OPERATOR: &str = "ipam.towpath.dev/operator";
/// The value of that key. The schema allows no words but the four of Cilium.
pub const OPERATOR_VALUE: &str = "do-not-release";
/// The value of a block in release.
pub const BLOCK_VALUE: &str = "ready-for-release";

/// True if the object is one of an agent that gives addresses of claimed blocks alone.
#[must_use]
pub fn has_agent(object: &Value) -> bool {
    object["metadata"]["annotations"][AGENT].is_string()
}

/// True if the operator takes blocks back by the object's version alone.
#[must_use]
pub fn has_operator(object: &Value) -> bool {
    object["status"]["ipam"]["release-ips"][OPERATOR].is_string()
}

/// The blocks that are being released. Single addresses, for which an older agent answers, are
/// none: they have no length.
#[must_use]
pub fn blocks(object: &Value) -> BTreeSet<IpNet> {
    let map = object["status"]["ipam"]["release-ips"].as_object();
    let keys = map.into_iter().flat_map(serde_json::Map::keys);
    keys.filter_map(|key| key.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_are_told_from_single_addresses_and_from_the_operator() {
        let release = json!({
            "10.0.0.16/28": BLOCK_VALUE, "10.0.0.5/32": BLOCK_VALUE,
            "10.0.0.9": "marked-for-release", OPERATOR: OPERATOR_VALUE
        });
        let object = json!({"status": {"ipam": {"release-ips": release}}});
        let expected = ["10.0.0.16/28", "10.0.0.5/32"].map(|text| text.parse().unwrap());
        assert_eq!(blocks(&object), expected.into());
        assert!(has_operator(&object) && !has_agent(&object));
        assert!(!has_operator(&json!({})));
        assert!(has_agent(
            &json!({"metadata": {"annotations": {AGENT: "1.0.0"}}})
        ));
    }
}
