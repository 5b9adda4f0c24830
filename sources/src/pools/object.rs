//! One pool's document or object: what of it can be used, and what is wrong with the rest.

use std::collections::{BTreeMap, BTreeSet};

use api::types::{Refused, RefusedKind};
use ipam::Family;
use ipam::node::{Binding, RESTRICT};
use ipnet::IpNet;
use kubernetes::pool::{pool_selection, restriction};
use loader::intent::masquerade::SKIP;
use serde_json::{Map, Value, json};

const KIND: &str = "CiliumPodIPPool";
/// Versions that Cilium serves now, and the one that it is about to serve.
const API_VERSIONS: [&str; 2] = ["cilium.io/v2alpha1", "cilium.io/v2"];
/// Prefix of the names of our annotations.
const OURS: &str = "ipam.towpath.dev/";
const BINDING: &str = "an annotation that binds the pool to ENIs cannot be read";

/// Settings that were read of a pool.
#[derive(Debug)]
pub(super) struct Read {
    /// True if its addresses keep their source; an error if that cannot be read.
    pub(super) skip: Result<bool, ()>,
    pub(super) families: BTreeSet<Family>,
    /// Families whose part cannot be read.
    pub(super) unreadable: BTreeSet<Family>,
    /// The ENIs that it is bound to; an error if that cannot be read.
    pub(super) binding: Result<Option<Binding>, ()>,
    /// Fields that are not used.
    pub(super) refused: Vec<Refused>,
}

/// The name of the pool that a document is of.
pub(super) fn name(object: &Value) -> Result<&str, String> {
    let is_one_of = |path: &str, allowed: &[&str]| match object.pointer(path) {
        Some(Value::String(text)) if allowed.contains(&text.as_str()) => Ok(()),
        found => Err(refused(&dotted(path), found, &allowed.join(" or "))),
    };
    if !object.is_object() {
        return Err(refused("document", Some(object), &format!("a {KIND}")));
    }
    is_one_of("/kind", &[KIND])?;
    is_one_of("/apiVersion", &API_VERSIONS)?;
    match object.pointer("/metadata/name") {
        Some(Value::String(name)) if !name.is_empty() => Ok(name),
        found => Err(refused("metadata.name", found, "the name of the pool")),
    }
}

/// Reads a pool's document.
pub(super) fn read(name: &str, object: &Value) -> Read {
    let mut problems = Problems {
        pool: name,
        refused: Vec::new(),
    };
    let annotations = annotations(object, &mut problems);
    let (families, unreadable) = families(object, &mut problems);
    Read {
        skip: skips(annotations.as_ref(), &mut problems),
        binding: binding(annotations.as_ref(), &mut problems),
        families,
        unreadable,
        refused: problems.refused,
    }
}

/// Used part of a document, as a document. Unreadable parts are taken from `last`.
pub(super) fn essence(name: &str, object: &Value, read: &Read, last: Option<&Value>) -> Value {
    let annotations = |object: &Value, is_taken: &dyn Fn(&str) -> bool| -> Map<String, Value> {
        let all = object.pointer("/metadata/annotations");
        let all = all.and_then(Value::as_object).into_iter().flatten();
        let taken = all.filter(|(key, _)| is_taken(key));
        taken.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let or_last = |is_read: bool| last.filter(|_| !is_read).unwrap_or(object);
    let is_binding = |key: &str| key.starts_with(OURS) && key != RESTRICT;
    let is_restriction_good = restriction::is_good(object);
    let mut ours = annotations(or_last(is_restriction_good), &|key| key == RESTRICT);
    if !is_restriction_good && ours.is_empty() {
        // A restriction that never could be read continues to admit no pod.
        ours.insert(RESTRICT.to_owned(), Value::Null);
    }
    ours.extend(annotations(or_last(read.skip.is_ok()), &|key| key == SKIP));
    ours.extend(annotations(or_last(read.binding.is_ok()), &is_binding));
    let are_selectors_good = pool_selection::check_selectors(object).is_ok();
    let spec = [
        ("ipv4", !read.unreadable.contains(&Family::V4)),
        ("ipv6", !read.unreadable.contains(&Family::V6)),
        ("podSelector", are_selectors_good),
        ("namespaceSelector", are_selectors_good),
    ];
    let spec = spec.into_iter().filter_map(|(key, is_read)| {
        let field = or_last(is_read).get("spec")?.get(key)?;
        Some((key.to_owned(), field.clone()))
    });
    let spec: Map<String, Value> = spec.collect();
    json!({
        "apiVersion": API_VERSIONS[0], "kind": KIND, "spec": spec,
        "metadata": {"name": name, "annotations": ours},
    })
}

struct Problems<'a> {
    pool: &'a str,
    refused: Vec<Refused>,
}

impl Problems<'_> {
    fn add(&mut self, kind: RefusedKind, reason: String) {
        self.refused.push(Refused {
            kind,
            entry: format!("pool {}", self.pool),
            reason,
        });
    }

    fn field(&mut self, path: &str, found: &Value, allowed: &str) {
        let reason = refused(path, Some(found), allowed);
        self.add(RefusedKind::Pool, reason);
    }
}

/// Its annotations; nothing where they are no annotations.
fn annotations<'a>(object: &'a Value, problems: &mut Problems<'_>) -> Option<Map<String, Value>> {
    let found: &'a Value = match object.pointer("/metadata/annotations") {
        None | Some(Value::Null) => return Some(Map::new()),
        Some(found) => found,
    };
    if let Value::Object(map) = found {
        return Some(map.clone());
    }
    let reason = refused("metadata.annotations", Some(found), "a map of texts");
    problems.add(RefusedKind::Annotation, reason);
    None
}

fn skips(
    annotations: Option<&Map<String, Value>>,
    problems: &mut Problems<'_>,
) -> Result<bool, ()> {
    match annotations.ok_or(())?.get(SKIP) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::String(text)) if text == "true" => Ok(true),
        Some(Value::String(text)) if text == "false" => Ok(false),
        Some(other) => {
            let reason = format!(
                "metadata.annotations.{SKIP}: {} does not skip masquerade; only \"true\" does. What \
                 the pool said before stays in force",
                shown(other)
            );
            problems.add(RefusedKind::Annotation, reason);
            Err(())
        }
    }
}

fn binding(
    annotations: Option<&Map<String, Value>>,
    problems: &mut Problems<'_>,
) -> Result<Option<Binding>, ()> {
    let mut texts = BTreeMap::new();
    for (key, value) in annotations.ok_or(())? {
        match value {
            Value::String(text) => {
                texts.insert(key.clone(), text.clone());
            }
            Value::Null => {}
            other if key.starts_with(OURS) => {
                let path = format!("metadata.annotations.{key}");
                problems.add(
                    RefusedKind::Annotation,
                    refused(&path, Some(other), "a text"),
                );
                return Err(());
            }
            _ => {}
        }
    }
    Binding::parse(&texts).map_err(|error| {
        let reason = format!("metadata.annotations: {error}; {BINDING}");
        problems.add(RefusedKind::Annotation, reason);
    })
}

/// The families that the pool has CIDRs of, and those whose part cannot be read.
fn families(object: &Value, problems: &mut Problems<'_>) -> (BTreeSet<Family>, BTreeSet<Family>) {
    let mut families = BTreeSet::new();
    let mut unreadable = BTreeSet::new();
    let spec = match object.get("spec") {
        None | Some(Value::Null) => return (families, unreadable),
        Some(spec) => spec,
    };
    if !spec.is_object() {
        problems.field("spec", spec, "an object with ipv4 or ipv6");
        return (families, Family::ALL.into());
    }
    for (key, family, longest) in [("ipv4", Family::V4, 32), ("ipv6", Family::V6, 128)] {
        let path = format!("spec.{key}");
        match spec.get(key) {
            None | Some(Value::Null) => {}
            Some(of_family @ Value::Object(_)) => {
                families.insert(family);
                check_cidrs(&path, of_family, family, problems);
                check_mask(&path, of_family, longest, problems);
            }
            Some(other) => {
                unreadable.insert(family);
                problems.field(&path, other, "an object with cidrs and maskSize");
            }
        }
    }
    (families, unreadable)
}

fn check_cidrs(path: &str, of_family: &Value, family: Family, problems: &mut Problems<'_>) {
    let path = format!("{path}.cidrs");
    let all = match of_family.get("cidrs") {
        None | Some(Value::Null) => return,
        Some(Value::Array(all)) => all,
        Some(other) => return problems.field(&path, other, "a list of CIDRs"),
    };
    for (i, found) in all.iter().enumerate() {
        let net = found.as_str().and_then(|text| text.parse::<IpNet>().ok());
        let is_good = net.is_some_and(|net| Family::of(net.addr()) == family);
        if !is_good {
            let allowed = format!("a CIDR of {family}");
            problems.field(&format!("{path}[{i}]"), found, &allowed);
        }
    }
}

fn check_mask(path: &str, of_family: &Value, longest: u64, problems: &mut Problems<'_>) {
    let Some(found) = of_family.get("maskSize").filter(|found| !found.is_null()) else {
        return;
    };
    let cidrs = of_family.get("cidrs").and_then(Value::as_array);
    let cidrs = cidrs.into_iter().flatten().filter_map(Value::as_str);
    let lengths = cidrs.filter_map(|text| Some(text.parse::<IpNet>().ok()?.prefix_len()));
    let shortest = lengths.min().map_or(1, u64::from).min(longest);
    let is_good = |size: u64| (shortest..=longest).contains(&size);
    if !found.as_u64().is_some_and(is_good) {
        let allowed = format!("{shortest} to {longest}");
        problems.field(&format!("{path}.maskSize"), found, &allowed);
    }
}

fn dotted(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}

/// A value as a message has it.
fn shown(value: &Value) -> String {
    const MOST: usize = 80;
    let text = value.to_string();
    let short: String = text.chars().take(MOST).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{short}{more}")
}

/// A field that is not as it has to be.
pub(super) fn refused(field: &str, found: Option<&Value>, allowed: &str) -> String {
    match found {
        None | Some(Value::Null) => format!("{field}: missing; allowed: {allowed}"),
        Some(Value::String(text)) if text.is_empty() => {
            format!("{field}: missing; allowed: {allowed}")
        }
        Some(other) => format!("{field}: {} is refused; allowed: {allowed}", shown(other)),
    }
}
