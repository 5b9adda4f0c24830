//! A `CiliumPodIPPool` as the operator reads it, and what it writes there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::cluster::{PoolSpec, Space};
use ipam::node::Binding;
use ipam::{EdgeRules, Family};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::field::{Fields, Problem};

/// The finalizer of plain pools: while nodes have blocks of it, a pool does not go.
pub const FINALIZER: &str = "pool.towpath.dev/blocks";
/// The annotation with the CIDRs of which nodes have blocks, sorted and separated by commas. The
/// admission policy `towpath-pool-in-use` keeps them in the spec.
pub const IN_USE: &str = "pool.towpath.dev/cidrs-in-use";

/// The version of the resource that every Cilium from 1.13 on serves.
const V2ALPHA1: &str = "v2alpha1";

/// A pool's document. A field that cannot be read is as good as missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolDocument {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`: another one is another pool of the same name.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// `apiVersion`, without the group: that of Cilium up to 1.20 where it is missing.
    pub api_version: String,
    /// The pool as a source of blocks; none if it is bound to ENIs, or if its annotations cannot be
    /// read.
    pub plain: Option<PoolSpec>,
    /// Fields that cannot be used, while the rest of the document holds.
    pub problems: Vec<Problem>,
    finalizers: Vec<String>,
    in_use: String,
}

impl PoolDocument {
    /// Reads a `CiliumPodIPPool`.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let mut fields = Fields::of(object);
        let annotations = fields.map(&["metadata", "annotations"]);
        let mut text = |key| fields.text(&["metadata", key]).unwrap_or_default();
        let (name, uid, version) = (text("name"), text("uid"), text("resourceVersion"));
        let mut spec = PoolSpec {
            created: text("creationTimestamp"),
            is_deleted: fields.at(&["metadata", "deletionTimestamp"]).is_some(),
            ..PoolSpec::default()
        };
        spec.edges = EdgeRules {
            allow_first: fields.flag(&["spec", "allowFirstIP"]) == Some(true),
            allow_last: fields.flag(&["spec", "allowLastIP"]) == Some(true),
        };
        for family in Family::ALL {
            let space = space(&mut fields, family);
            spec.spaces.extend(space.map(|space| (family, space)));
        }
        let finalizers = fields.at(&["metadata", "finalizers"]);
        let finalizers = finalizers.and_then(Value::as_array);
        let finalizers = finalizers.into_iter().flatten().filter_map(Value::as_str);
        let api_version = fields.text(&["apiVersion"]).unwrap_or_default();
        let api_version = api_version.rsplit('/').next().filter(|it| !it.is_empty());
        Self {
            api_version: api_version.unwrap_or(V2ALPHA1).to_owned(),
            name,
            uid,
            version,
            plain: matches!(Binding::parse(&annotations), Ok(None)).then_some(spec),
            finalizers: finalizers.map(str::to_owned).collect(),
            in_use: annotations.get(IN_USE).cloned().unwrap_or_default(),
            problems: fields.take_problems(),
        }
    }

    /// True if the pool has the finalizer.
    #[must_use]
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|it| it == FINALIZER)
    }

    /// The merge patch that adds the pool's finalizer and its CIDRs in use; none if there is no
    /// change. A pool that is being deleted is removed once no node has a block of it. One that is
    /// bound to ENIs gets no finalizer. If it was a plain pool before, its finalizer is removed
    /// after its last block.
    #[must_use]
    pub fn marks(&self, in_use: &BTreeSet<IpNet>, is_used: bool) -> Option<Value> {
        let spec = self.plain.as_ref();
        if spec.is_none() && is_used {
            return None;
        }
        let keeps = spec.is_some_and(|spec| !spec.is_deleted || is_used);
        let has = self.has_finalizer();
        let mut change = Map::new();
        // The API server takes no new finalizer of an object that is being deleted.
        if keeps != has && !(keeps && spec.is_some_and(|spec| spec.is_deleted)) {
            let others = self.finalizers.iter().filter(|it| *it != FINALIZER);
            let mut all: Vec<&str> = others.map(String::as_str).collect();
            all.extend(keeps.then_some(FINALIZER));
            change.insert("finalizers".to_owned(), json!(all));
        }
        let texts: Vec<String> = in_use.iter().map(ToString::to_string).collect();
        let text = texts.join(",");
        if text != self.in_use {
            let value = if text.is_empty() {
                Value::Null
            } else {
                json!(text)
            };
            change.insert("annotations".to_owned(), json!({IN_USE: value}));
        }
        if change.is_empty() {
            return None;
        }
        change.insert("resourceVersion".to_owned(), json!(self.version));
        Some(json!({"metadata": change}))
    }
}

/// The addresses of a family; none if the pool has none.
fn space(fields: &mut Fields<'_>, family: Family) -> Option<Space> {
    let path = ["spec", family.name(), "maskSize"];
    let longest = u64::from(family.host_length());
    let expected = match family {
        Family::V4 => "a number from 1 to 32",
        Family::V6 => "a number from 1 to 128",
    };
    let mask = fields.read(&path, expected, |value| {
        let mask = value.as_u64().filter(|mask| (1..=longest).contains(mask))?;
        u8::try_from(mask).ok()
    })?;
    let path = ["spec", family.name(), "cidrs"];
    let list = fields.read(&path, "a list of CIDRs", Value::as_array)?;
    let mut cidrs = Vec::new();
    for (number, value) in list.iter().enumerate() {
        let cidr = value.as_str().and_then(|text| text.parse::<IpNet>().ok());
        match cidr.filter(|cidr| Family::of_net(*cidr) == family) {
            Some(cidr) => cidrs.push(cidr),
            None => fields.refuse_in(&path, &format!("[{number}]"), value, "a CIDR of the family"),
        }
    }
    Some(Space {
        cidrs,
        mask,
        reserved: reserved(fields, family),
    })
}

/// The reserved ranges, which the version `v2` of the resource has.
fn reserved(fields: &mut Fields<'_>, family: Family) -> Vec<(IpAddr, IpAddr)> {
    let path = ["spec", family.name(), "pool"];
    let entries = fields.read(&path, "a list of CIDRs with ranges", Value::as_array);
    let mut all = Vec::new();
    for (number, entry) in entries.into_iter().flatten().enumerate() {
        let ranges = entry["reservedRanges"].as_array().into_iter().flatten();
        for (place, range) in ranges.enumerate() {
            let end = |key: &str| range[key].as_str()?.parse::<IpAddr>().ok();
            let range_of = end("start").zip(end("end")).filter(|(start, end)| {
                let is_of = |address| Family::of(address) == family;
                start <= end && is_of(*start) && is_of(*end)
            });
            if range_of.is_none() {
                let inside = format!("[{number}].reservedRanges[{place}]");
                fields.refuse_in(&path, &inside, range, "start and end, the end not before");
            }
            all.extend(range_of);
        }
    }
    all
}

#[cfg(test)]
mod tests;
