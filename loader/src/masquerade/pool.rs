//! Pools: `CiliumPodIPPool` documents, of which the masquerade policy is read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ipam::Family;
use ipam::node::Binding;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{MasqueradeSettings, Policy};
use crate::document::{self, nullable};
use crate::follow::{Fragment, Fragments, Source};

/// Name of the pool that an address is of when nothing else is said.
pub(crate) const DEFAULT_POOL: &str = "default";
/// The annotation that keeps a pool's addresses from being masqueraded.
const ANNOTATION: &str = "ipam.cilium.io/skip-masquerade";
const KIND: &str = "CiliumPodIPPool";
/// What is served now, and what Cilium is about to serve.
const API_VERSIONS: [&str; 2] = ["cilium.io/v2alpha1", "cilium.io/v2"];

/// Every pool that the documents have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    by_name: BTreeMap<String, Document>,
    notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Document {
    skip: bool,
    pool: ipam::node::Pool,
    file: PathBuf,
    number: usize,
}

/// What holds for the addresses of a pool, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PoolPolicy {
    /// Whether packets from it keep their source.
    pub skip_masquerade: bool,
    /// Why.
    pub why: String,
    /// Where the pool's document stands, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl Pools {
    /// Reads pools from a text: documents, or a list of them. `place` is where they stand.
    ///
    /// # Errors
    /// Says which document is wrong, and how.
    pub(crate) fn read(place: &Path, text: &str) -> Result<Self, String> {
        let mut pools = Self::default();
        pools.add(&Fragment {
            path: place.to_owned(),
            text: text.to_owned(),
        })?;
        Ok(pools)
    }

    /// What a user may wonder about.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The pools that are bound to ENIs.
    pub(crate) fn bound(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|name| self.is_bound(name))
    }

    /// The names of the pools that have a document.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// What allocation has to know of them.
    pub(crate) fn for_allocation(&self) -> BTreeMap<String, ipam::node::Pool> {
        let all = self.by_name.iter();
        all.map(|(name, document)| (name.clone(), document.pool.clone()))
            .collect()
    }

    /// Whether a pool is bound to ENIs.
    #[must_use]
    pub fn is_bound(&self, name: &str) -> bool {
        let document = self.by_name.get(name);
        document.is_some_and(|document| document.pool.binding.is_some())
    }

    /// Whether a pool has a document.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }
}

impl Policy {
    /// What holds for a pool; `None` while that is not known, because the documents have not been
    /// read well yet.
    #[must_use]
    pub fn pool(&self, name: &str, settings: &MasqueradeSettings) -> Option<PoolPolicy> {
        let document = self.pools.as_ref().and_then(|all| all.by_name.get(name));
        let policy = |skip_masquerade, why: String| {
            Some(PoolPolicy {
                skip_masquerade,
                why,
                source: document.map(Document::place),
            })
        };
        if settings.only_default_pool && name != DEFAULT_POOL {
            return policy(true, "only-default-pool is set".to_owned());
        }
        match document {
            Some(document) if document.skip => policy(true, format!("{ANNOTATION}: \"true\"")),
            Some(_) => policy(false, format!("no {ANNOTATION}: \"true\"")),
            None if settings.pools.is_some() && self.pools.is_none() => None,
            None => policy(false, "no document".to_owned()),
        }
    }
}

impl Document {
    fn place(&self) -> String {
        format!("{}, document {}", self.file.display(), self.number)
    }
}

/// How pool documents are read.
pub struct PoolDocuments;

impl Source for PoolDocuments {
    type Content = Fragments;
    type Value = Pools;

    const NAME: &'static str = "pool documents";

    fn read(&self, path: &Path) -> Fragments {
        Fragments::read(path, |file| {
            let extension = file.extension().and_then(|e| e.to_str());
            matches!(extension, Some("yaml" | "yml" | "json"))
        })
    }

    fn parse(&self, path: &Path, content: &Fragments) -> Result<Pools, String> {
        match content {
            Fragments::Missing => Err(format!("{}: there is no such file", path.display())),
            Fragments::Unreadable(error) => Err(error.clone()),
            Fragments::Found(fragments) => {
                let mut pools = Pools::default();
                for fragment in fragments {
                    pools.add(fragment)?;
                }
                Ok(pools)
            }
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Raw {
    #[serde(rename = "apiVersion", deserialize_with = "nullable")]
    api_version: String,
    #[serde(deserialize_with = "nullable")]
    kind: String,
    #[serde(deserialize_with = "nullable")]
    metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    spec: Spec,
    /// Of a `List`, as `kubectl get -o yaml` writes it.
    #[serde(deserialize_with = "nullable")]
    items: Vec<Raw>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    ipv4: Option<IgnoredAny>,
    ipv6: Option<IgnoredAny>,
}

impl Spec {
    /// The families that the pool has CIDRs of.
    fn families(&self) -> BTreeSet<Family> {
        let of = |spec: &Option<IgnoredAny>, family| spec.is_some().then_some(family);
        [of(&self.ipv4, Family::V4), of(&self.ipv6, Family::V6)]
            .into_iter()
            .flatten()
            .collect()
    }
}

impl Pools {
    fn add(&mut self, fragment: &Fragment) -> Result<(), String> {
        let file = &fragment.path;
        let place = |number: usize, error: String| {
            format!("{}: document {number}: {error}", file.display())
        };
        let documents: Vec<Option<Raw>> = document::read_all(&fragment.text)
            .map_err(|error| place(error.document, error.error.to_string()))?;
        for (number, raw) in (1..).zip(documents) {
            let Some(raw) = raw else { continue };
            let all = if raw.kind == "List" {
                raw.items
            } else {
                vec![raw]
            };
            for pool in all {
                self.put(pool, file, number)
                    .map_err(|error| place(number, error))?;
            }
        }
        Ok(())
    }

    fn put(&mut self, raw: Raw, file: &Path, number: usize) -> Result<(), String> {
        if raw.kind != KIND {
            return Err(refused("kind", &raw.kind, KIND));
        }
        if !API_VERSIONS.contains(&raw.api_version.as_str()) {
            let allowed = API_VERSIONS.join(" or ");
            return Err(refused("apiVersion", &raw.api_version, &allowed));
        }
        let Metadata { name, annotations } = raw.metadata;
        if name.is_empty() {
            return Err(refused("metadata.name", &name, "the name of the pool"));
        }
        if let Some(first) = self.by_name.get(&name) {
            let allowed = format!(
                "a name that no other document has; {} has it",
                first.place()
            );
            return Err(refused("metadata.name", &name, &allowed));
        }
        let annotation = annotations.get(ANNOTATION).map(String::as_str);
        if let Some(value) = annotation.filter(|value| !["true", "false"].contains(value)) {
            self.notes.push(format!(
                "pool {name}: metadata.annotations.{ANNOTATION}: {value:?} does not skip \
                 masquerade; only \"true\" does"
            ));
        }
        let skip = annotation == Some("true");
        let binding = Binding::parse(&annotations);
        let binding = binding.map_err(|error| format!("metadata.annotations: {error}"))?;
        let document = Document {
            skip,
            pool: ipam::node::Pool {
                families: raw.spec.families(),
                binding,
            },
            file: file.to_owned(),
            number,
        };
        self.by_name.insert(name, document);
        Ok(())
    }
}

fn refused(field: &str, value: &str, allowed: &str) -> String {
    if value.is_empty() {
        format!("{field}: missing; allowed: {allowed}")
    } else {
        format!("{field}: {value:?} is refused; allowed: {allowed}")
    }
}

#[cfg(test)]
mod tests;
