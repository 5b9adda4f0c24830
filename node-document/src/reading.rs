//! Parsing of a text to the document's fields, each entry separately.
//!
//! A valid text is parsed at once. If that fails, the text is parsed as a tree. Values of a wrong
//! type are then removed and reported, until the rest is valid.

use serde::Deserialize;

use super::fields::{CiliumNode, Eni, Entry};
use super::raw::Raw;
use document::ReadError;
use loader::intent::Problem;

/// Maximum number of fields of one part that are removed singly, since the part is parsed again for
/// each.
const TAKEN_OUT: usize = 64;
/// Number of fields that are removed with their parent, before one more level is removed with each.
const TAKEN_OUTER: usize = 8;
/// Fields without which no other field can be interpreted.
const ESSENTIAL: [&str; 8] = [
    "document",
    "apiVersion",
    "kind",
    "spec",
    "spec.eni",
    "status",
    "status.eni",
    "status.eni.enis",
];
/// Lists of an ENI whose elements are independent of each other.
const LISTS: [&str; 4] = ["addresses[", "prefixes[", "ipv6-prefixes[", "vpc.cidrs["];

/// Parses a document, and returns it with the fields of a wrong type outside of the ENIs' entries.
///
/// # Errors
/// If the text is no document, or if an essential field has a wrong type.
pub(super) fn read(text: &str) -> Result<(CiliumNode, Vec<Problem>), ReadError> {
    let error = match document::read::<CiliumNode>(text) {
        Ok(document) => return Ok((document, Vec::new())),
        Err(error) => error,
    };
    // A text that is no tree either is refused with the first error.
    let Ok(Tree(mut tree)) = document::read::<Tree>(text) else {
        return Err(error);
    };
    let notation = Notation::of(text);
    let enis = tree.at_mut("status.eni.enis").map(|enis| {
        let is_map = matches!(enis, Raw::Map(_));
        if is_map {
            std::mem::take(enis)
        } else {
            Raw::Null
        }
    });
    let (mut document, problems) = notation.prune::<CiliumNode>(tree, &ESSENTIAL)?;
    if let Some(Raw::Map(entries)) = enis {
        document.status.eni.enis.0 = by_key(&entries, notation);
    }
    Ok((document, problems))
}

/// The entries of the ENIs by key.
fn by_key(all: &[(String, Raw)], notation: Notation) -> Vec<(String, Entry)> {
    let twice = |key: &String| all.iter().filter(|(other, _)| other == key).count() > 1;
    let mut entries: Vec<(String, Entry)> = Vec::new();
    for (key, value) in all {
        if entries.iter().any(|(known, _)| known == key) {
            continue;
        }
        let read = if twice(key) {
            let message = format!("the key {key:?} is a duplicate; each is allowed once");
            Entry::unreadable(String::new(), message)
        } else {
            entry(value, notation)
        };
        entries.push((key.clone(), read));
    }
    entries
}

fn entry(value: &Raw, notation: Notation) -> Entry {
    match notation.prune::<Eni>(value.clone(), &["document"]) {
        Ok((eni, mut wrong)) if !matches!(value, Raw::Null) => {
            let of_list = |problem: &Problem| {
                let is_element = |list: &&str| problem.path.starts_with(*list);
                let is_of_list = LISTS.iter().any(is_element);
                problem.path == "public-ip" || (is_of_list && problem.path.ends_with(']'))
            };
            let elements = wrong.extract_if(.., |problem| of_list(problem)).collect();
            Entry {
                eni,
                wrong,
                elements,
            }
        }
        Ok(_) => Entry::unreadable(String::new(), "null; allowed: an ENI's fields".to_owned()),
        Err(error) => Entry::unreadable(String::new(), error.message),
    }
}

/// Number of enclosing levels that are removed with a field, after `taken_out` others.
fn levels(taken_out: usize) -> usize {
    match taken_out.checked_sub(TAKEN_OUT) {
        None => 0,
        Some(more) => 1 + more / TAKEN_OUTER,
    }
}

/// True if a field is within another one.
fn is_within(path: &str, outer: &str) -> bool {
    let rest = path.strip_prefix(outer);
    rest.is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// The tree of a text.
#[derive(Default, Deserialize)]
struct Tree(Raw);

/// Notation of a text.
#[derive(Clone, Copy)]
enum Notation {
    Json,
    Yaml,
}

impl Notation {
    fn of(text: &str) -> Self {
        if document::is_json(text) {
            Self::Json
        } else {
            Self::Yaml
        }
    }

    /// Parses a tree without the fields of a wrong type, and returns those as problems.
    fn prune<T>(self, mut tree: Raw, essential: &[&str]) -> Result<(T, Vec<Problem>), ReadError>
    where
        T: for<'de> Deserialize<'de> + Default,
    {
        let mut problems: Vec<Problem> = Vec::new();
        let mut taken_out = 0;
        loop {
            let error = match self.typed(&tree) {
                Ok(value) => return Ok((value, problems)),
                Err(error) => error,
            };
            let problem = match levels(taken_out) {
                0 => Problem {
                    path: error.path.clone(),
                    message: error.message.clone(),
                },
                levels => Problem {
                    path: tree.outer(&error.path, levels).to_owned(),
                    message: format!("too much of it cannot be read, such as {error}"),
                },
            };
            let is_essential = essential.contains(&problem.path.as_str());
            if is_essential || problem.path.is_empty() || !tree.take_out(&problem.path) {
                return Err(error);
            }
            problems.retain(|inner| !is_within(&inner.path, &problem.path));
            problems.push(problem);
            taken_out += 1;
        }
    }

    /// Parses a tree through a text: in YAML, a word without quotes is a string where one is
    /// expected.
    fn typed<T>(self, tree: &Raw) -> Result<T, ReadError>
    where
        T: for<'de> Deserialize<'de> + Default,
    {
        let text = match self {
            Self::Json => serde_json::to_string(tree).map_err(|e| e.to_string()),
            Self::Yaml => serde_yaml_ng::to_string(tree).map_err(|e| e.to_string()),
        };
        let read = match (text, self) {
            (Ok(text), Self::Json) => document::read_json(&text),
            (Ok(text), Self::Yaml) => document::read_yaml(&text),
            (Err(message), _) => {
                let path = "document".to_owned();
                return Err(ReadError { path, message });
            }
        };
        // Line and column refer to the intermediate text.
        read.map_err(|error| ReadError {
            message: match error.message.rsplit_once(" at line ") {
                Some((message, _)) => message.to_owned(),
                None => error.message,
            },
            path: error.path,
        })
    }
}
