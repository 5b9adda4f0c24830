//! The addresses of a node in its spec: the flat pool for agents before Cilium 1.20, and
//! `pools.allocated` of the pool `default` for newer ones. Both are written in one update.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::Family;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::node::{DEFAULT_POOL, NodeDocument};

/// The blocks that a node's ENIs give to the pool `default`, each with its ENI's id.
pub type Blocks = BTreeMap<IpNet, String>;

/// When the operator writes `pools.allocated`, which the agent owns from its first request on
/// (`compat.allocated`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// As long as the agent requests nothing, and again while a downgraded one shows what it uses.
    #[default]
    UntilAgent,
    /// At each change of the node's addresses.
    Always,
    /// Never.
    Never,
}

/// The shortest IPv4 prefix that the flat pool lists, with an entry for each address. For IPv6 it
/// lists only single addresses, since a prefix has too many.
const LISTED_V4: u8 = 24;

/// The fields of `spec.ipam` that say which addresses the node has, as they should be; fields that
/// stay as they are are left out.
#[must_use]
pub fn fields(
    node: &NodeDocument,
    object: &Value,
    blocks: &Blocks,
    compat: Compat,
) -> Map<String, Value> {
    let there = &object["spec"]["ipam"];
    let mut fields = Map::new();
    for (family, key) in [(Family::V4, "pool"), (Family::V6, "ipv6-pool")] {
        let has_any = there[key].as_object().is_some_and(|pool| !pool.is_empty());
        if !node.demand.is_requested() || has_any {
            let pool = flat(blocks, family);
            if has_any || !pool.is_empty() {
                fields.insert(key.to_owned(), Value::Object(pool));
            }
        }
    }
    let is_ours = match compat {
        Compat::UntilAgent => !node.demand.is_requested(),
        Compat::Always => true,
        Compat::Never => false,
    };
    let before = node.allocated.get(DEFAULT_POOL);
    let after: BTreeSet<IpNet> = blocks.keys().copied().collect();
    if is_ours && before.map_or(!after.is_empty(), |before| *before != after) {
        let allocated = allocated(&there["pools"]["allocated"], &after);
        fields.insert("pools".to_owned(), json!({"allocated": allocated}));
    }
    fields
}

/// The flat pool of a family: an entry for each address, with its ENI.
fn flat(blocks: &Blocks, family: Family) -> Map<String, Value> {
    let mut pool = Map::new();
    for (block, eni) in blocks {
        if Family::of(block.addr()) != family {
            continue;
        }
        for address in addresses(*block) {
            pool.insert(address.to_string(), json!({"resource": eni}));
        }
    }
    pool
}

/// The addresses of a block that can be listed one by one.
fn addresses(block: IpNet) -> Vec<IpAddr> {
    match block {
        IpNet::V4(net) if net.prefix_len() >= LISTED_V4 => {
            let first = u32::from(net.network());
            let last = u32::from(net.broadcast());
            (first..=last)
                .map(|address| IpAddr::V4(address.into()))
                .collect()
        }
        IpNet::V6(net) if net.prefix_len() == net.max_prefix_len() => vec![net.addr().into()],
        IpNet::V4(_) | IpNet::V6(_) => Vec::new(),
    }
}

/// The list of allocated pools with the corrected entry of the default pool. Other fields of the
/// entry, and other pools, stay.
fn allocated(there: &Value, blocks: &BTreeSet<IpNet>) -> Vec<Value> {
    let cidrs: Vec<_> = blocks.iter().map(ToString::to_string).collect();
    let mut all = there.as_array().cloned().unwrap_or_default();
    let own = all.iter_mut().find(|entry| entry["pool"] == DEFAULT_POOL);
    match own.and_then(Value::as_object_mut) {
        Some(own) => drop(own.insert("cidrs".to_owned(), json!(cidrs))),
        None => all.push(json!({"pool": DEFAULT_POOL, "cidrs": cidrs})),
    }
    all.retain(|entry| entry["pool"] != DEFAULT_POOL || !blocks.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(texts: &[&str]) -> Blocks {
        let block = |text: &&str| (text.parse().unwrap(), "eni-1".to_owned());
        texts.iter().map(block).collect()
    }

    fn write(object: &Value, texts: &[&str], compat: Compat) -> Value {
        let node = NodeDocument::read(object);
        Value::Object(fields(&node, object, &blocks(texts), compat))
    }

    fn sorted(list: &Value) -> BTreeSet<String> {
        let texts = list.as_array().unwrap().iter();
        texts
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    }

    /// The two examples of Cilium's change, as sets.
    #[test]
    fn both_forms_are_written_in_one_update() {
        let resource = |id: &str| json!({"resource": id});
        let single = ["100.120.134.75", "100.120.137.182", "100.120.248.50"];
        let cidrs = single.map(|address| format!("{address}/32"));
        let node = json!({"spec": {"ipam": {"min-allocate": 3, "pre-allocate": 1}}});
        let written = write(
            &node,
            &cidrs.each_ref().map(String::as_str),
            Compat::UntilAgent,
        );
        let pool: BTreeMap<_, _> = single.iter().map(|a| (*a, resource("eni-1"))).collect();
        assert_eq!(written["pool"], json!(pool));
        let entry = &written["pools"]["allocated"][0];
        assert_eq!(entry["pool"], "default");
        assert_eq!(sorted(&entry["cidrs"]), cidrs.into());

        let written = write(&node, &["100.121.95.96/28"], Compat::UntilAgent);
        let pool = written["pool"].as_object().unwrap();
        assert_eq!(pool.len(), 16);
        assert!(pool.contains_key("100.121.95.96") && pool.contains_key("100.121.95.111"));
        let allocated = json!([{"pool": "default", "cidrs": ["100.121.95.96/28"]}]);
        assert_eq!(written["pools"]["allocated"], allocated);
    }

    fn node(requested: bool, used: bool, flat: bool) -> Value {
        let mut object = json!({"spec": {"ipam": {"pools": {"allocated": [
            {"pool": "blue", "cidrs": ["10.9.0.0/24"]},
            {"pool": "default", "cidrs": ["10.0.0.5/32"], "allowFirstIP": true}
        ]}}}});
        if requested {
            let requested = json!([{"pool": "default", "needed": {"ipv4-addrs": 8}}]);
            object["spec"]["ipam"]["pools"]["requested"] = requested;
        }
        if used {
            object["status"] = json!({"ipam": {"used": {"10.0.0.5": {"owner": "a/b"}}}});
        }
        if flat {
            object["spec"]["ipam"]["pool"] = json!({"10.0.0.5": {"resource": "eni-1"}});
        }
        object
    }

    #[test]
    fn the_agent_owns_its_allocation_from_its_first_request_until_a_downgrade() {
        let new = ["10.0.0.5/32", "10.0.0.6/32"];
        for (requested, used, compat, is_written) in [
            (false, false, Compat::UntilAgent, true),
            (false, true, Compat::UntilAgent, true),
            (true, false, Compat::UntilAgent, false),
            (true, true, Compat::UntilAgent, true),
            (true, false, Compat::Always, true),
            (false, true, Compat::Never, false),
        ] {
            let object = node(requested, used, false);
            let written = write(&object, &new, compat);
            let has = written.get("pools").is_some();
            assert_eq!(has, is_written, "{requested} {used} {compat:?}");
            if has {
                let expected = json!([
                    {"pool": "blue", "cidrs": ["10.9.0.0/24"]},
                    {"pool": "default", "cidrs": ["10.0.0.5/32", "10.0.0.6/32"], "allowFirstIP": true}
                ]);
                assert_eq!(written["pools"]["allocated"], expected, "others stay");
            }
            let is_flat = written.get("pool").is_some();
            assert_eq!(is_flat, !requested || used, "{requested} {used} {compat:?}");
        }
        // A flat pool that is there is kept right: an agent of that time may come back.
        let object = node(true, false, true);
        assert_eq!(
            write(&object, &new, Compat::UntilAgent)["pool"]
                .as_object()
                .unwrap()
                .len(),
            2
        );
        let object = node(false, false, true);
        let none = write(&object, &[], Compat::UntilAgent);
        assert_eq!(none["pool"], json!({}));
        assert_eq!(none["pools"]["allocated"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn an_ipv6_prefix_is_allocated_and_not_listed() {
        let object = json!({});
        let written = write(
            &object,
            &["2001:db8::/80", "2001:db8:1::5/128"],
            Compat::UntilAgent,
        );
        assert!(written.get("pool").is_none());
        assert_eq!(
            written["ipv6-pool"],
            json!({"2001:db8:1::5": {"resource": "eni-1"}})
        );
        let cidrs = sorted(&written["pools"]["allocated"][0]["cidrs"]);
        assert_eq!(cidrs.len(), 2);
        assert_eq!(write(&object, &[], Compat::Always), json!({}));
    }
}
