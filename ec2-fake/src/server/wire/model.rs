//! The names of EC2's requests and answers, by a model that is reduced from botocore's.
//!
//! `model/reduce.py` makes `model/model.json`, and says how.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::error::{Failure, Result};

/// The model of all actions that the fake plays.
pub(super) static MODEL: LazyLock<Model> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../model/model.json"))
        .expect("model.json is part of this crate, and a test reads it")
});

/// Requests and answers.
#[derive(Debug, Deserialize)]
pub(super) struct Model {
    /// The version of the API.
    pub(super) version: String,
    /// The XML namespace of answers.
    pub(super) namespace: String,
    /// The actions.
    pub(super) actions: BTreeMap<String, Action>,
    /// The shapes of answers, by name.
    #[cfg(test)]
    pub(super) shapes: BTreeMap<String, Shape>,
}

/// An action.
#[derive(Debug, Deserialize)]
pub(super) struct Action {
    /// Parameters by name; `N` stands for the number of a list's element.
    pub(super) parameters: BTreeMap<String, Kind>,
    /// Names of required parameters. One of a list is the start of its elements' names.
    required: Vec<String>,
    /// The shape of the answer, if it has one.
    #[cfg(test)]
    pub(super) answer: Option<String>,
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Any text.
    String,
    /// A signed number of 32 bits.
    Integer,
    /// `true` or `false`.
    Boolean,
}

/// A shape of an answer: each name in it is a scalar type's or another shape's.
#[cfg(test)]
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Shape {
    /// The elements' name and shape.
    List(String, String),
    /// Shapes by the elements' names.
    Structure(BTreeMap<String, String>),
}

impl Action {
    /// Refuses a request with a parameter that the action does not have or that has another type,
    /// and a request that lacks one.
    pub(super) fn check(&self, parameters: &BTreeMap<String, String>) -> Result<()> {
        for (name, value) in parameters {
            let kind = pattern(name).and_then(|pattern| self.parameters.get(&pattern));
            let kind = kind.ok_or_else(|| {
                Failure::new(
                    "UnknownParameter",
                    format!("The parameter {name} is not recognized"),
                )
            })?;
            kind.check(name, value)?;
        }
        let is_there = |required: &str| {
            let list = required.strip_suffix(".N").map(|list| format!("{list}."));
            match list {
                Some(list) => parameters.keys().any(|name| name.starts_with(&list)),
                None => parameters.contains_key(required),
            }
        };
        match self.required.iter().find(|required| !is_there(required)) {
            Some(name) => Err(missing(name.trim_end_matches(".N"))),
            None => Ok(()),
        }
    }
}

impl Kind {
    fn check(self, name: &str, value: &str) -> Result<()> {
        let (fits, expected) = match self {
            Self::String => (true, "text"),
            Self::Integer => (value.parse::<i32>().is_ok(), "a number of 32 bits"),
            Self::Boolean => (["true", "false"].contains(&value), "true or false"),
        };
        if fits {
            return Ok(());
        }
        Err(invalid(name, value, expected))
    }
}

/// The name of a parameter with `N` for each number. Elements are counted from 1.
fn pattern(name: &str) -> Option<String> {
    let part = |part: &str| match part.parse::<u32>() {
        Ok(0) => None,
        Ok(_) => Some("N".to_owned()),
        Err(_) => Some(part.to_owned()),
    };
    let parts: Option<Vec<_>> = name.split('.').map(part).collect();
    Some(parts?.join("."))
}

/// The refusal of a request without a parameter.
pub(super) fn missing(name: &str) -> Failure {
    Failure::new(
        "MissingParameter",
        format!("The request must contain the parameter {name}"),
    )
}

/// The refusal of a parameter's value.
pub(super) fn invalid(name: &str, value: &str, expected: &str) -> Failure {
    Failure::value(format!(
        "Value ({value}) for parameter {name} is invalid. Expected {expected}."
    ))
}
