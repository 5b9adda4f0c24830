//! Fields of an object, each judged by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

/// Most characters of a value in a message.
const SHOWN: usize = 80;

/// A field that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Its path, such as `spec.eni.subnet-ids`.
    pub path: String,
    /// The value, as JSON.
    pub value: String,
    /// The values that are expected.
    pub expected: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            value,
            expected,
        } = self;
        write!(f, "{path}: {value} is refused: expected {expected}")
    }
}

/// Reads fields, and collects the problems of those that cannot be used.
pub(super) struct Fields<'a> {
    object: &'a Value,
    problems: Vec<Problem>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(object: &'a Value) -> Self {
        Self {
            object,
            problems: Vec::new(),
        }
    }

    /// The problems so far.
    pub(super) fn take_problems(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.problems)
    }

    /// The value at a path of keys; null is as good as none, as for Cilium's own reader.
    pub(super) fn at(&self, path: &[&str]) -> Option<&'a Value> {
        let mut value = self.object;
        for key in path {
            value = value.get(key)?;
        }
        (!value.is_null()).then_some(value)
    }

    pub(super) fn refuse(&mut self, path: &[&str], value: &Value, expected: &'static str) {
        let mut text = value.to_string();
        if let Some((end, _)) = text.char_indices().nth(SHOWN) {
            text.truncate(end);
            text.push('…');
        }
        self.problems.push(Problem {
            path: path.join("."),
            value: text,
            expected,
        });
    }

    /// A value of a kind; `None` where it is missing or refused.
    pub(super) fn read<T>(
        &mut self,
        path: &[&str],
        expected: &'static str,
        parse: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.at(path)?;
        let parsed = parse(value);
        if parsed.is_none() {
            self.refuse(path, value, expected);
        }
        parsed
    }

    /// A text that is not empty.
    pub(super) fn text(&mut self, path: &[&str]) -> Option<String> {
        let text = self.read(path, "a text", Value::as_str)?;
        (!text.is_empty()).then(|| text.to_owned())
    }

    pub(super) fn flag(&mut self, path: &[&str]) -> Option<bool> {
        self.read(path, "true or false", Value::as_bool)
    }

    pub(super) fn count(&mut self, path: &[&str]) -> Option<u32> {
        let parse = |value: &Value| value.as_u64().and_then(|count| u32::try_from(count).ok());
        self.read(path, "a number from 0 to 4294967295", parse)
    }

    /// The texts of a list. One that is no text is named, and the others hold.
    pub(super) fn texts(&mut self, path: &[&str]) -> BTreeSet<String> {
        let list = self.read(path, "a list of texts", Value::as_array);
        let mut texts = BTreeSet::new();
        for (number, value) in list.into_iter().flatten().enumerate() {
            match value.as_str().filter(|text| !text.is_empty()) {
                Some(text) => drop(texts.insert(text.to_owned())),
                None => self.refuse_in(path, &format!("[{number}]"), value, "a text"),
            }
        }
        texts
    }

    /// The texts of a map by their keys. One that is no text is named, and the others hold.
    pub(super) fn map(&mut self, path: &[&str]) -> BTreeMap<String, String> {
        let map = self.read(path, "a map of texts", Value::as_object);
        let mut texts = BTreeMap::new();
        for (key, value) in map.into_iter().flatten() {
            match value.as_str() {
                Some(text) => drop(texts.insert(key.clone(), text.to_owned())),
                None => self.refuse_in(path, &format!(".{key}"), value, "a text"),
            }
        }
        texts
    }

    /// Names a problem of something inside of a field.
    pub(super) fn refuse_in(
        &mut self,
        path: &[&str],
        inside: &str,
        value: &Value,
        expected: &'static str,
    ) {
        self.refuse(&[&format!("{}{inside}", path.join("."))], value, expected);
    }
}
