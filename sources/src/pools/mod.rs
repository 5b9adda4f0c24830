//! `CiliumPodIPPool` documents, as they are read from files and from the API server.

mod object;

use std::path::{Path, PathBuf};

use api::types::{Refused, RefusedKind};
use ipam::node::Binding;
use loader::intent::masquerade::{PoolDocument, Pools};
use serde_json::Value;
use tokio::sync::watch;

use self::object::Read;
use crate::follow::{self, Followed, Fragment, Fragments, Source};

/// Follows a file or folder of `CiliumPodIPPool` documents.
///
/// Must be called inside a tokio runtime.
#[must_use]
pub fn watch(path: PathBuf) -> watch::Receiver<Followed<Pools>> {
    follow::watch(path, PoolDocuments)
}

/// Says why a file or folder of pools cannot be used as it is now, if so.
pub fn look(path: &Path) -> Option<String> {
    match follow::look(path, &PoolDocuments) {
        Ok(pools) => {
            let refused: Vec<_> = pools.refused().iter().map(ToString::to_string).collect();
            (!refused.is_empty()).then(|| refused.join("; "))
        }
        Err(error) => Some(error),
    }
}

/// Reads pools from a text: documents, or a list of them. `place` is where they stand, `last` what
/// was read well last.
///
/// # Errors
/// When none can be read: says which document is wrong, and how.
pub fn read(place: &Path, text: &str, last: Option<&Pools>) -> Result<Pools, String> {
    let mut reader = Reader::new(last);
    reader.add(&Fragment {
        path: place.to_owned(),
        text: Ok(text.to_owned()),
    });
    reader.finish()
}

/// Source of pool documents.
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
    /// The faults of documents that are of no pool.
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
                // The name may be the only readable part of the object.
                let named = object.pointer("/metadata/name").and_then(Value::as_str);
                return self.keep(file, |name| named.is_none_or(|named| named == name));
            }
        };
        if !self.take_name(name, file, number) {
            return;
        }
        let last = self.last.and_then(|last| last.by_name.get(name));
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
        let document = PoolDocument {
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

    /// Refuses a document whose name another one has. False if that is the new one.
    fn take_name(&mut self, name: &str, file: &Path, number: usize) -> bool {
        let Some(first) = self.pools.by_name.get(name).filter(|first| !first.is_old) else {
            return true;
        };
        let reason = |has: &str| {
            format!(
                "metadata.name: {name:?} is refused; allowed: a name that no other document has; \
                 {has} has it"
            )
        };
        // A file that comes takes no pool away from the one that has had it.
        let last = self.last.and_then(|last| last.by_name.get(name));
        let was_here = last.is_some_and(|last| last.file == file && first.file != file);
        let (refused, reason) = if was_here {
            let here = format!("{}, document {number}", file.display());
            let there = format!("{}: document {}", first.file.display(), first.number);
            (there, reason(&here))
        } else {
            let here = format!("{}: document {number}", file.display());
            (here, reason(&first.place()))
        };
        self.refuse(refused, reason);
        was_here
    }

    /// Keeps the former pools of a file of which a document cannot be read, unless other files have
    /// them.
    fn keep(&mut self, file: &Path, is_kept: impl Fn(&str) -> bool) {
        let last = self.last.into_iter().flat_map(|last| &last.by_name);
        let of_file = last.filter(|(_, document)| document.file == file);
        for (name, document) in of_file.filter(|(name, _)| is_kept(name)) {
            let document = PoolDocument {
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
