//! An untyped document as a tree. An error in a part of it affects only that part.

use std::fmt;

use serde::de::{EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value of a document. A map may have a key twice.
#[derive(Clone, Debug, Default)]
pub(super) enum Raw {
    #[default]
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<Raw>),
    Map(Vec<(String, Raw)>),
}

impl Raw {
    /// The value of a map's key; the last one if the key is there twice.
    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Map(entries) = self else {
            return None;
        };
        let mut found = entries.iter_mut().rev().filter(|(name, _)| name == key);
        found.next().map(|(_, value)| value)
    }

    /// Makes the value at a path null, or removes it from its map if it is null already; returns
    /// true on success.
    pub(super) fn take_out(&mut self, path: &str) -> bool {
        match self.at_mut(path) {
            None => return false,
            Some(Self::Null) => {}
            Some(value) => {
                *value = Self::Null;
                return true;
            }
        }
        let ends = path.match_indices('.').map(|(end, _)| end);
        let mut parents = ends.filter_map(|end| path.split_at_checked(end));
        parents.any(|(parent, key)| match (self.at_mut(parent), key.get(1..)) {
            (Some(Self::Map(entries)), Some(key)) => {
                let before = entries.len();
                entries.retain(|(name, _)| name != key);
                entries.len() < before
            }
            _ => false,
        })
    }

    /// The path of the value that contains the one at `path`, `levels` further out. The empty path
    /// is the whole document.
    pub(super) fn outer<'p>(&mut self, path: &'p str, levels: usize) -> &'p str {
        let ends = path.match_indices(['.', '[']).rev();
        let mut outer = ends.filter_map(|(end, _)| path.get(..end));
        // A key may have dots in it.
        let mut is_there = |path: &&str| self.at_mut(path).is_some();
        let mut outer = outer.by_ref().filter(|path| is_there(path));
        levels
            .checked_sub(1)
            .map_or(path, |skipped| outer.nth(skipped).unwrap_or_default())
    }

    /// The value at a path in the parsers' notation (`addresses[3]`, `vpc.cidrs[0]`). A key may
    /// have dots in it.
    pub(super) fn at_mut(&mut self, path: &str) -> Option<&mut Self> {
        let path = path.strip_prefix('.').unwrap_or(path);
        if path.is_empty() {
            return Some(self);
        }
        match self {
            Self::List(values) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                values.get_mut(index.parse::<usize>().ok()?)?.at_mut(rest)
            }
            Self::Map(entries) => {
                let rest_of = |key: &str| {
                    let rest = path.strip_prefix(key)?;
                    let ends = rest.is_empty() || rest.starts_with(['.', '[']);
                    ends.then_some(rest)
                };
                let keys = entries.iter().map(|(key, _)| key.clone());
                let fitting = keys.filter(|key| rest_of(key).is_some());
                let key = fitting.max_by_key(String::len)?;
                let rest = rest_of(&key)?.to_owned();
                self.get_mut(&key)?.at_mut(&rest)
            }
            Self::Null
            | Self::Bool(_)
            | Self::Unsigned(_)
            | Self::Signed(_)
            | Self::Float(_)
            | Self::Text(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Signed(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element()? {
            values.push(value);
        }
        Ok(Raw::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }

    /// Reads a tagged value of YAML without its tag, which no field uses.
    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Raw, A::Error> {
        let (IgnoredAny, value) = access.variant()?;
        value.newtype_variant()
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Unsigned(value) => serializer.serialize_u64(*value),
            Self::Signed(value) => serializer.serialize_i64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(values) => serializer.collect_seq(values),
            Self::Map(entries) => serializer.collect_map(entries.iter().map(|(k, v)| (k, v))),
        }
    }
}
