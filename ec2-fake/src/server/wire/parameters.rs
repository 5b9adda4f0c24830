//! The parameters of a request. Each is taken once, and none may be left over.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::model::{invalid, missing};
use crate::error::{Failure, Result};

/// Parameters of a request, or of an element of one of its lists.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    /// The start of the names in the request.
    path: String,
    values: BTreeMap<String, String>,
}

impl Parameters {
    /// All parameters of a request.
    pub(super) fn new(values: BTreeMap<String, String>) -> Self {
        Self {
            path: String::new(),
            values,
        }
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A text.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)
    }

    /// A text that has to be there.
    pub(super) fn required(&mut self, name: &str) -> Result<String> {
        self.text(name).ok_or_else(|| missing(&self.full(name)))
    }

    /// A value that a text stands for.
    pub(super) fn parsed<T: FromStr>(&mut self, name: &str, expected: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(invalid(&self.full(name), &text, expected)),
        }
    }

    /// A number of at least 0; 0 when unset.
    pub(super) fn number<T: FromStr + Default>(&mut self, name: &str) -> Result<T> {
        let number = self.parsed(name, "a number of at least 0")?;
        Ok(number.unwrap_or_default())
    }

    /// A flag; `false` when unset.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool> {
        Ok(self.parsed(name, "true or false")?.unwrap_or_default())
    }

    /// The elements of a list, by their numbers. `read` has to take all of an element.
    pub(super) fn each<T>(
        &mut self,
        name: &str,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let start = format!("{name}.");
        let mut elements: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
        let inside = |key: &String| key.starts_with(&start);
        let keys: Vec<_> = self
            .values
            .keys()
            .filter(|key| inside(key))
            .cloned()
            .collect();
        for key in keys {
            let rest = key.strip_prefix(&start).unwrap_or_default();
            let (number, rest) = rest.split_once('.').unwrap_or((rest, ""));
            let number = number.parse().unwrap_or_default();
            if let Some(value) = self.values.remove(&key) {
                let element = elements.entry(number).or_default();
                element.insert(rest.to_owned(), value);
            }
        }
        let elements = elements.into_iter().map(|(number, values)| {
            let path = format!("{}{start}{number}.", self.path);
            let mut element = Self { path, values };
            let value = read(&mut element)?;
            element.finish()?;
            Ok(value)
        });
        elements.collect()
    }

    /// The texts of a list.
    pub(super) fn texts(&mut self, name: &str) -> Result<Vec<String>> {
        self.each(name, |element| element.required(""))
    }

    /// The values that the texts of a list stand for; each has the name `inner` in its element.
    pub(super) fn all<T: FromStr>(
        &mut self,
        name: &str,
        inner: &str,
        expected: &str,
    ) -> Result<Vec<T>> {
        self.each(name, |element| {
            let value = element.parsed(inner, expected)?;
            value.ok_or_else(|| missing(&element.full(inner)))
        })
    }

    /// Refuses what EC2 knows and the fake does not play: a test must not pass for the lack of it.
    pub(super) fn finish(&self) -> Result<()> {
        match self.values.keys().next() {
            Some(name) => Err(Failure::new(
                "UnsupportedOperation",
                format!("the fake does not play the parameter {}", self.full(name)),
            )),
            None => Ok(()),
        }
    }
}
