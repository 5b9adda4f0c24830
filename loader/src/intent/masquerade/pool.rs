//! Pools: what `CiliumPodIPPool` documents say of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use api::types::PoolPolicy;
use api::types::Refused;
use serde_json::Value;

use super::{MasqueradeSettings, Policy};

/// The annotation that keeps a pool's addresses from being masqueraded.
pub const SKIP: &str = "ipam.cilium.io/skip-masquerade";
/// Name of the pool that an address is of when nothing else is said.
pub const DEFAULT_POOL: &str = "default";

/// Every pool that the documents have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// The documents, by the name of the pool.
    pub by_name: BTreeMap<String, PoolDocument>,
    /// Notes for users.
    pub notes: Vec<String>,
    /// Entries and fields that are not used.
    pub refused: Vec<Refused>,
}

/// One pool's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDocument {
    /// True if its addresses keep their source.
    pub skip: bool,
    /// The pool.
    pub pool: ipam::node::Pool,
    /// The file that it is in.
    pub file: PathBuf,
    /// Its place in the file, from 1.
    pub number: usize,
    /// The part of the document that is read.
    pub essence: Value,
    /// True if its file cannot be read any more.
    pub is_old: bool,
    /// True if it was deleted and stays in force.
    pub is_removed: bool,
}

impl Pools {
    /// The pools of an API server that has no such resource.
    #[must_use]
    pub fn absent(note: String) -> Self {
        Self {
            notes: vec![note],
            ..Self::default()
        }
    }

    /// Entries and fields that are not used.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// These pools with those of `before` that are in use and have no document any more; `None` if
    /// there is no such pool.
    #[must_use]
    pub fn with_removed(&self, before: &Self, used: &BTreeSet<String>) -> Option<Self> {
        let removed = before.by_name.iter();
        let mut removed = removed
            .filter(|(name, _)| used.contains(*name) && !self.has(name))
            .peekable();
        removed.peek()?;
        let mut all = self.clone();
        for (name, document) in removed {
            all.notes.push(format!(
                "pool {name}: its document was deleted; it stays in force until no pod has an address \
                 of the pool"
            ));
            let document = PoolDocument {
                is_removed: true,
                ..document.clone()
            };
            all.by_name.insert(name.clone(), document);
        }
        Some(all)
    }

    /// The pools that were deleted and stay in force.
    pub fn removed(&self) -> impl Iterator<Item = &str> {
        let all = self.by_name.iter();
        all.filter(|(_, document)| document.is_removed)
            .map(|(name, _)| name.as_str())
    }

    /// Those pools as one text that the reader of documents takes; `None` where there is none.
    #[must_use]
    pub fn removed_text(&self) -> Option<String> {
        let all = self.by_name.values();
        let items: Vec<_> = all
            .filter(|document| document.is_removed)
            .map(|document| &document.essence)
            .collect();
        (!items.is_empty()).then(|| serde_json::json!({"kind": "List", "items": items}).to_string())
    }

    /// The pools as one text that the reader of documents takes.
    #[must_use]
    pub fn text(&self) -> String {
        let items: Vec<_> = self.documents().collect();
        serde_json::json!({"kind": "List", "items": items}).to_string()
    }

    /// The part in use of each pool's document.
    pub fn documents(&self) -> impl Iterator<Item = &Value> {
        self.by_name.values().map(|document| &document.essence)
    }

    /// Notes for users.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The pools that are bound to ENIs.
    pub fn bound(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|name| self.is_bound(name))
    }

    /// The names of the pools that have a document.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The pools as allocation needs them.
    #[must_use]
    pub fn for_allocation(&self) -> BTreeMap<String, ipam::node::Pool> {
        let all = self.by_name.iter();
        all.map(|(name, document)| (name.clone(), document.pool.clone()))
            .collect()
    }

    /// True if a pool is bound to ENIs.
    #[must_use]
    pub fn is_bound(&self, name: &str) -> bool {
        let document = self.by_name.get(name);
        document.is_some_and(|document| document.pool.binding.is_some())
    }

    /// True if a pool has a document.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }
}

impl Policy {
    /// The policy of a pool; `None` until the documents were read well once.
    #[must_use]
    pub fn pool(&self, name: &str, settings: &MasqueradeSettings) -> Option<PoolPolicy> {
        let document = self.pools.as_ref().and_then(|all| all.by_name.get(name));
        let policy = |skip_masquerade, why: String| {
            Some(PoolPolicy {
                skip_masquerade,
                why,
                source: document.map(PoolDocument::place),
            })
        };
        if settings.only_default_pool && name != DEFAULT_POOL {
            return policy(true, "only-default-pool is set".to_owned());
        }
        match document {
            Some(document) if document.skip => policy(true, format!("{SKIP}: \"true\"")),
            Some(_) => policy(false, format!("no {SKIP}: \"true\"")),
            None if settings.pools.is_some() && self.pools.is_none() => None,
            None => policy(false, "no document".to_owned()),
        }
    }
}

impl PoolDocument {
    /// Its place, in words.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}, document {}", self.file.display(), self.number)
    }
}
