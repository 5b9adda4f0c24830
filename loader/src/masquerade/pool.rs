//! Pools: `CiliumPodIPPool` documents, of which the masquerade policy is read.

mod object;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use api::types::PoolPolicy;
use api::types::{Refused, RefusedKind};
use ipam::node::Binding;
use serde_json::Value;

use self::object::{Read, SKIP};
use super::{MasqueradeSettings, Policy};
use crate::follow::{Fragment, Fragments, Source};

/// Name of the pool that an address is of when nothing else is said.
pub(crate) const DEFAULT_POOL: &str = "default";
/// Every pool that the documents have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    by_name: BTreeMap<String, Document>,
    notes: Vec<String>,
    refused: Vec<Refused>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Document {
    skip: bool,
    pool: ipam::node::Pool,
    file: PathBuf,
    number: usize,
    /// What of the document is read.
    essence: Value,
    /// True if its file cannot be read any more.
    is_old: bool,
    /// True if it was deleted and stays in force.
    is_removed: bool,
}

impl Pools {
    /// Reads pools from a text: documents, or a list of them. `place` is where they stand, `last` what
    /// was read well last.
    ///
    /// # Errors
    /// When none can be read: says which document is wrong, and how.
    pub(crate) fn read(place: &Path, text: &str, last: Option<&Self>) -> Result<Self, String> {
        let mut reader = Reader::new(last);
        reader.add(&Fragment {
            path: place.to_owned(),
            text: Ok(text.to_owned()),
        });
        reader.finish()
    }

    /// The pools of an API server that has no such resource.
    pub(crate) fn absent(note: String) -> Self {
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

    /// These pools, and those of `before` beside them that are in use and have no document any more;
    /// `None` where there is no such pool.
    pub(crate) fn with_removed(&self, before: &Self, used: &BTreeSet<String>) -> Option<Self> {
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
            let document = Document {
                is_removed: true,
                ..document.clone()
            };
            all.by_name.insert(name.clone(), document);
        }
        Some(all)
    }

    /// The pools that were deleted and stay in force.
    pub(crate) fn removed(&self) -> impl Iterator<Item = &str> {
        let all = self.by_name.iter();
        all.filter(|(_, document)| document.is_removed)
            .map(|(name, _)| name.as_str())
    }

    /// Those pools as one text that [`Self::read`] reads; `None` where there is none.
    pub(crate) fn removed_text(&self) -> Option<String> {
        let all = self.by_name.values();
        let items: Vec<_> = all
            .filter(|document| document.is_removed)
            .map(|document| &document.essence)
            .collect();
        (!items.is_empty()).then(|| serde_json::json!({"kind": "List", "items": items}).to_string())
    }

    /// The pools as one text that [`Self::read`] reads.
    pub(crate) fn text(&self) -> String {
        let items: Vec<_> = self.documents().collect();
        serde_json::json!({"kind": "List", "items": items}).to_string()
    }

    /// What is used of each pool's document.
    pub(crate) fn documents(&self) -> impl Iterator<Item = &Value> {
        self.by_name.values().map(|document| &document.essence)
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
            Some(document) if document.skip => policy(true, format!("{SKIP}: \"true\"")),
            Some(_) => policy(false, format!("no {SKIP}: \"true\"")),
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

    fn parse(
        &self,
        path: &Path,
        content: &Fragments,
        last: Option<&Pools>,
    ) -> Result<Pools, String> {
        match content {
            Fragments::Missing => Err(format!("{}: there is no such file", path.display())),
            Fragments::Unreadable(error) => Err(error.clone()),
            Fragments::Found(fragments) => {
                let mut reader = Reader::new(last);
                for fragment in fragments {
                    reader.add(fragment);
                }
                reader.finish()
            }
        }
    }
}

/// Reads the documents of a set, one after the other.
struct Reader<'a> {
    pools: Pools,
    /// The pools as they were read well last.
    last: Option<&'a Pools>,
    /// What is wrong with documents that are of no pool.
    first_error: Option<String>,
}

impl<'a> Reader<'a> {
    fn new(last: Option<&'a Pools>) -> Self {
        Self {
            pools: Pools::default(),
            last,
            first_error: None,
        }
    }

    fn add(&mut self, fragment: &Fragment) {
        let file = &fragment.path;
        let text = match &fragment.text {
            Ok(text) => text,
            Err(error) => {
                self.refuse(file.display().to_string(), error.clone());
                return self.keep(file, |_| true);
            }
        };
        let documents = document::read_all::<Value>(text);
        for (number, document) in (1..).zip(documents) {
            let place = format!("{}: document {number}", file.display());
            match document {
                Ok(Value::Null) => {}
                Ok(list) if list["kind"] == "List" => match list.get("items") {
                    None | Some(Value::Null) => {}
                    Some(Value::Array(items)) => {
                        for item in items {
                            self.put(item, file, number);
                        }
                    }
                    other => {
                        self.refuse(place, object::refused("items", other, "a list of pools"));
                        self.keep(file, |_| true);
                    }
                },
                Ok(pool) => self.put(&pool, file, number),
                Err(error) => {
                    self.refuse(place, error.to_string());
                    self.keep(file, |_| true);
                }
            }
        }
    }

    fn refuse(&mut self, entry: String, reason: String) {
        let refused = Refused {
            kind: RefusedKind::Document,
            entry,
            reason,
        };
        self.first_error.get_or_insert_with(|| refused.to_string());
        self.pools.refused.push(refused);
    }

    fn put(&mut self, object: &Value, file: &Path, number: usize) {
        let place = || format!("{}: document {number}", file.display());
        let name = match object::name(object) {
            Ok(name) => name,
            Err(error) => {
                self.refuse(place(), error);
                // What it is of may be all that can be read of it.
                let named = object.pointer("/metadata/name").and_then(Value::as_str);
                return self.keep(file, |name| named.is_none_or(|named| named == name));
            }
        };
        let last = self.last.and_then(|last| last.by_name.get(name));
        if let Some(first) = self.pools.by_name.get(name).filter(|first| !first.is_old) {
            // A file that comes takes no pool away from the one that has had it.
            let was_here = last.is_some_and(|last| last.file == file && first.file != file);
            let here = format!("{}, document {number}", file.display());
            let reason = |has: &str| {
                format!(
                    "metadata.name: {name:?} is refused; allowed: a name that no other document \
                     has; {has} has it"
                )
            };
            if !was_here {
                let reason = reason(&first.place());
                return self.refuse(place(), reason);
            }
            let at = format!("{}: document {}", first.file.display(), first.number);
            self.refuse(at, reason(&here));
        }
        let mut read = object::read(name, object);
        self.pools.refused.append(&mut read.refused);
        if object["spec"].is_null() {
            let note = format!("pool {name}: spec: missing, so that it has CIDRs of no family");
            self.pools.notes.push(note);
        }
        let essence = object::essence(name, object, &read, last.map(|last| &last.essence));
        let Read {
            skip,
            mut families,
            unreadable,
            binding,
            refused: _,
        } = read;
        let skip = skip.unwrap_or_else(|()| last.is_some_and(|last| last.skip));
        let before = last.into_iter().flat_map(|last| &last.pool.families);
        families.extend(before.filter(|family| unreadable.contains(family)));
        let binding = binding.unwrap_or_else(|()| match last {
            Some(last) => last.pool.binding.clone(),
            None => Some(Binding::nothing()),
        });
        let document = Document {
            skip,
            pool: ipam::node::Pool { families, binding },
            file: file.to_owned(),
            number,
            essence,
            is_old: false,
            is_removed: false,
        };
        self.pools.by_name.insert(name.to_owned(), document);
    }

    /// Has pools of a file of which a document cannot be read stay as they were, unless they are
    /// elsewhere.
    fn keep(&mut self, file: &Path, is_kept: impl Fn(&str) -> bool) {
        let last = self.last.into_iter().flat_map(|last| &last.by_name);
        let of_file = last.filter(|(_, document)| document.file == file);
        for (name, document) in of_file.filter(|(name, _)| is_kept(name)) {
            let document = Document {
                is_old: true,
                ..document.clone()
            };
            self.pools.by_name.entry(name.clone()).or_insert(document);
        }
    }

    /// The pools.
    ///
    /// # Errors
    /// When nothing can be used, and something is wrong.
    fn finish(self) -> Result<Pools, String> {
        match self.first_error {
            Some(error) if self.pools.by_name.is_empty() => Err(error),
            Some(_) | None => Ok(self.pools),
        }
    }
}

#[cfg(test)]
mod tests;
