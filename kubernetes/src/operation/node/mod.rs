//! A `CiliumNode` as the operator reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use serde_json::Value;

use super::field::{Fields, Problem};

/// The pool that the operator serves by ENIs.
pub const DEFAULT_POOL: &str = "default";
/// The annotation by which the operator leaves a node alone.
const IGNORE: &str = "ipam.cilium.io/ignore";

/// A node's document. A field that cannot be read is as good as missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDocument {
    /// `metadata`.
    pub meta: Metadata,
    /// The node's instance.
    pub instance: Instance,
    /// Where ENIs can be.
    pub place: Place,
    /// The rules for ENIs.
    pub rules: Rules,
    /// The bounds of the node's addresses.
    pub bounds: Bounds,
    /// The node's static IP.
    pub static_ip: StaticIpRule,
    /// The addresses that the node's agent wants.
    pub demand: Demand,
    /// `spec.ipam.pools.allocated`, by pool.
    pub allocated: BTreeMap<String, BTreeSet<IpNet>>,
    /// `spec.ipam.podCIDRs`, of Cilium's mode `cluster-pool`.
    pub pod_cidrs: BTreeSet<IpNet>,
    /// Entries of the flat pool, `spec.ipam.pool`.
    pub flat: usize,
    /// The ids in `status.eni.enis`.
    pub published: BTreeSet<String>,
    /// Fields that cannot be used.
    pub problems: Problems,
}

/// The metadata of a node's document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// `name`.
    pub name: String,
    /// `uid`: another one is another node of the same name.
    pub uid: String,
    /// `resourceVersion`.
    pub version: String,
    /// Set while the object is being deleted.
    pub is_deleted: bool,
    /// The uid of the Node that owns it.
    pub owner: Option<String>,
    /// The annotation `ipam.cilium.io/ignore` is `"true"`.
    pub is_ignored: bool,
}

/// A node's instance, as its document names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// `spec.instance-id`, or the deprecated `spec.eni.instance-id`.
    pub id: Option<String>,
    /// `spec.eni.instance-type`.
    pub kind: Option<String>,
}

/// Fields of a document that cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// Unreadable rules. While there are any, nothing is changed for the node: an ENI in a wrong
    /// subnet or security group does more harm than a late one.
    pub of_rules: Vec<Problem>,
    /// Others, while the rest of the document holds.
    pub others: Vec<Problem>,
}

/// Where a node's ENIs can be, from `spec.eni`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// `vpc-id`.
    pub vpc: Option<String>,
    /// `availability-zone`.
    pub zone: Option<String>,
    /// `node-subnet-id`.
    pub own_subnet: Option<String>,
    /// `subnet-ids`.
    pub subnet_ids: BTreeSet<String>,
    /// `subnet-tags`.
    pub subnet_tags: BTreeMap<String, String>,
}

/// The rules for a node's ENIs, from `spec.eni`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// `first-interface-index`.
    pub first_index: u16,
    /// `exclude-interface-tags`.
    pub exclude_tags: BTreeMap<String, String>,
    /// `security-groups`.
    pub groups: BTreeSet<String>,
    /// `security-group-tags`.
    pub group_tags: BTreeMap<String, String>,
    /// Not `disable-prefix-delegation`.
    pub prefixes: bool,
    /// `use-primary-address`.
    pub use_primary: bool,
    /// `delete-on-termination`, which is set where it is missing.
    pub delete_on_termination: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            first_index: 0,
            exclude_tags: BTreeMap::new(),
            groups: BTreeSet::new(),
            group_tags: BTreeMap::new(),
            prefixes: true,
            use_primary: false,
            delete_on_termination: true,
        }
    }
}

/// The bounds of a node's addresses, from `spec.ipam`; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// `pre-allocate`.
    pub pre: i32,
    /// `min-allocate`.
    pub min: u32,
    /// `max-allocate`.
    pub max: u32,
    /// `max-above-watermark`.
    pub above: u32,
}

/// The public address that a node asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticIpRule {
    /// `spec.ipam.static-ip-tags`, the tags that it has to have; without any, the node asks for none.
    pub tags: BTreeMap<String, String>,
    /// `status.ipam.assigned-static-ip`.
    pub assigned: Option<Ipv4Addr>,
}

/// The addresses that a node's agent wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// `spec.ipam.pools.requested` by pool: agents from Cilium 1.20 on, and ours.
    pub requested: BTreeMap<String, Needed>,
    /// Entries of `status.ipam.used`: agents before Cilium 1.20. While there are any, an entry in
    /// `requested` is stale.
    pub used: u32,
}

impl Demand {
    /// True if the node's agent says how many addresses it wants, and owns `pools.allocated`.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.used == 0 && self.requested.contains_key(DEFAULT_POOL)
    }
}

/// The addresses of a pool that are wanted in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// `needed.ipv4-addrs`.
    pub ipv4: u32,
    /// `needed.ipv6-addrs`.
    pub ipv6: u32,
}

impl NodeDocument {
    /// Reads a `CiliumNode`.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let mut fields = Fields::of(object);
        let (place, rules) = (place(&mut fields), rules(&mut fields));
        let of_rules = fields.take_problems();
        Self {
            meta: metadata(&mut fields, object),
            instance: instance(&mut fields),
            place,
            rules,
            bounds: bounds(&mut fields),
            static_ip: static_ip(&mut fields),
            demand: demand(&mut fields),
            allocated: allocated(&mut fields),
            pod_cidrs: pod_cidrs(&mut fields),
            flat: keys(object, &["spec", "ipam", "pool"]).count(),
            published: keys(object, &["status", "eni", "enis"]).cloned().collect(),
            problems: Problems {
                of_rules,
                others: fields.take_problems(),
            },
        }
    }

    /// The blocks that the node has claimed, of all pools.
    #[must_use]
    pub fn claimed(&self) -> BTreeSet<IpNet> {
        self.allocated.values().flatten().copied().collect()
    }
}

fn metadata(fields: &mut Fields<'_>, object: &Value) -> Metadata {
    let annotation = object["metadata"]["annotations"][IGNORE].as_str();
    let mut text = |key| fields.text(&["metadata", key]).unwrap_or_default();
    Metadata {
        name: text("name"),
        uid: text("uid"),
        version: text("resourceVersion"),
        is_deleted: fields.at(&["metadata", "deletionTimestamp"]).is_some(),
        owner: owner(object),
        is_ignored: annotation == Some("true"),
    }
}

fn instance(fields: &mut Fields<'_>) -> Instance {
    let id = fields.text(&["spec", "instance-id"]);
    Instance {
        id: id.or_else(|| fields.text(&["spec", "eni", "instance-id"])),
        kind: fields.text(&["spec", "eni", "instance-type"]),
    }
}

fn static_ip(fields: &mut Fields<'_>) -> StaticIpRule {
    let address = |value: &Value| match value.as_str()? {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    };
    let path = ["status", "ipam", "assigned-static-ip"];
    let assigned = fields.read(&path, "an IPv4 address", address);
    StaticIpRule {
        tags: fields.map(&["spec", "ipam", "static-ip-tags"]),
        assigned: assigned.flatten(),
    }
}

fn pod_cidrs(fields: &mut Fields<'_>) -> BTreeSet<IpNet> {
    let path = ["spec", "ipam", "podCIDRs"];
    let mut all = BTreeSet::new();
    for text in fields.texts(&path) {
        if let Ok(cidr) = text.parse::<IpNet>() {
            all.insert(cidr.trunc());
        } else {
            fields.refuse(&path, &Value::String(text), "CIDRs");
        }
    }
    all
}

fn keys<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a String> {
    let value = path.iter().try_fold(object, |value, key| value.get(key));
    let map = value.and_then(Value::as_object);
    map.into_iter().flat_map(serde_json::Map::keys)
}

fn owner(object: &Value) -> Option<String> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let node = owners
        .iter()
        .find(|owner| owner["kind"] == "Node" && owner["apiVersion"] == "v1")?;
    node["uid"].as_str().map(str::to_owned)
}

fn place(fields: &mut Fields<'_>) -> Place {
    let eni = |key| ["spec", "eni", key];
    Place {
        vpc: fields.text(&eni("vpc-id")),
        zone: fields.text(&eni("availability-zone")),
        own_subnet: fields.text(&eni("node-subnet-id")),
        subnet_ids: fields.texts(&eni("subnet-ids")),
        subnet_tags: fields.map(&eni("subnet-tags")),
    }
}

fn rules(fields: &mut Fields<'_>) -> Rules {
    let eni = |key| ["spec", "eni", key];
    let index = |value: &Value| value.as_u64().and_then(|index| u16::try_from(index).ok());
    let expected = "a device index from 0 to 65535";
    let first_index = fields.read(&eni("first-interface-index"), expected, index);
    let disabled = fields.flag(&eni("disable-prefix-delegation"));
    Rules {
        first_index: first_index.unwrap_or(0),
        exclude_tags: fields.map(&eni("exclude-interface-tags")),
        groups: fields.texts(&eni("security-groups")),
        group_tags: fields.map(&eni("security-group-tags")),
        prefixes: disabled != Some(true),
        use_primary: fields.flag(&eni("use-primary-address")) == Some(true),
        delete_on_termination: fields.flag(&eni("delete-on-termination")) != Some(false),
    }
}

fn bounds(fields: &mut Fields<'_>) -> Bounds {
    let ipam = |key| ["spec", "ipam", key];
    let pre = |value: &Value| value.as_i64().and_then(|pre| i32::try_from(pre).ok());
    let pre = fields.read(&ipam("pre-allocate"), "a number below 2147483648", pre);
    let mut count = |key| fields.count(&ipam(key)).unwrap_or(0);
    Bounds {
        pre: pre.unwrap_or(0),
        min: count("min-allocate"),
        max: count("max-allocate"),
        above: count("max-above-watermark"),
    }
}

fn demand(fields: &mut Fields<'_>) -> Demand {
    let path = ["spec", "ipam", "pools", "requested"];
    let list = fields.read(&path, "a list of pools", Value::as_array);
    let mut requested = BTreeMap::new();
    for (number, entry) in list.into_iter().flatten().enumerate() {
        let Some(pool) = entry["pool"].as_str().filter(|pool| !pool.is_empty()) else {
            let inside = format!("[{number}].pool");
            fields.refuse_in(&path, &inside, &entry["pool"], "the name of a pool");
            continue;
        };
        let mut of = |key: &str| {
            let value = entry["needed"].get(key).filter(|value| !value.is_null());
            let Some(value) = value else { return 0 };
            let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
            count.unwrap_or_else(|| {
                let inside = format!("[{number}].needed.{key}");
                fields.refuse_in(&path, &inside, value, "a number from 0 to 4294967295");
                0
            })
        };
        let needed = Needed {
            ipv4: of("ipv4-addrs"),
            ipv6: of("ipv6-addrs"),
        };
        requested.insert(pool.to_owned(), needed);
    }
    let path = ["status", "ipam", "used"];
    let used = fields.read(&path, "a map of addresses", Value::as_object);
    let used = used.into_iter().flat_map(serde_json::Map::keys);
    let used = used.filter(|address| address.parse::<IpAddr>().is_ok());
    Demand {
        requested,
        used: u32::try_from(used.count()).unwrap_or(u32::MAX),
    }
}

fn allocated(fields: &mut Fields<'_>) -> BTreeMap<String, BTreeSet<IpNet>> {
    let path = ["spec", "ipam", "pools", "allocated"];
    let list = fields.read(&path, "a list of pools", Value::as_array);
    let mut allocated: BTreeMap<String, BTreeSet<IpNet>> = BTreeMap::new();
    for (number, entry) in list.into_iter().flatten().enumerate() {
        let Some(pool) = entry["pool"].as_str() else {
            let inside = format!("[{number}].pool");
            fields.refuse_in(&path, &inside, &entry["pool"], "the name of a pool");
            continue;
        };
        let blocks = allocated.entry(pool.to_owned()).or_default();
        let cidrs = entry["cidrs"].as_array();
        for (place, cidr) in cidrs.into_iter().flatten().enumerate() {
            if let Some(block) = cidr.as_str().and_then(|cidr| cidr.parse::<IpNet>().ok()) {
                blocks.insert(block.trunc());
            } else {
                let inside = format!("[{number}].cidrs[{place}]");
                fields.refuse_in(&path, &inside, cidr, "a CIDR");
            }
        }
    }
    allocated
}

#[cfg(test)]
mod tests;
