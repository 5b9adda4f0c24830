//! Policies and how they are judged.

use std::collections::BTreeMap;

use serde::Deserialize;
use wildmatch::WildMatch;

use super::Question;

/// A policy document.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct Policy {
    version: Version,
    statement: Vec<Statement>,
}

#[derive(Clone, Debug, Deserialize)]
enum Version {
    #[serde(rename = "2012-10-17")]
    V2012,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Statement {
    #[serde(default)]
    sid: String,
    effect: Effect,
    action: Many,
    resource: Many,
    #[serde(default)]
    condition: BTreeMap<Operator, BTreeMap<String, Many>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Effect {
    Allow,
    Deny,
}

/// The operators that the judge supports; any other is an error of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum Operator {
    StringEquals,
    StringNotEquals,
    StringLike,
    StringEqualsIfExists,
    StringLikeIfExists,
    ArnEquals,
    ArnLike,
    Null,
    #[serde(rename = "ForAllValues:StringEquals")]
    AllEqual,
    #[serde(rename = "ForAllValues:StringLike")]
    AllLike,
    #[serde(rename = "ForAnyValue:StringEquals")]
    AnyEqual,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Many {
    One(String),
    Several(Vec<String>),
}

impl Many {
    fn iter(&self) -> impl Iterator<Item = &str> {
        let values = match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values.as_slice(),
        };
        values.iter().map(String::as_str)
    }
}

/// A policy document cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It is not a policy.
    #[error("policy: {0}")]
    Document(#[from] serde_json::Error),
    /// A variable of the template has no value.
    #[error("policy: no value for the variable {0}")]
    Variable(String),
}

impl Policy {
    /// Reads a template: `${NAME}` stands for the value of a variable.
    ///
    /// # Errors
    /// When a variable has no value or the result is not a policy.
    pub fn from_template(text: &str, variables: &[(&str, &str)]) -> Result<Self, PolicyError> {
        let mut filled = text.to_owned();
        for (name, value) in variables {
            filled = filled.replace(&format!("${{{name}}}"), value);
        }
        if let Some((_, rest)) = filled.split_once("${") {
            let name = rest.split('}').next().unwrap_or_default();
            return Err(PolicyError::Variable(name.to_owned()));
        }
        Ok(serde_json::from_str(&filled)?)
    }

    /// The policy without the statement of an id.
    #[must_use]
    pub fn without(&self, sid: &str) -> Self {
        let mut rest = self.clone();
        rest.statement.retain(|statement| statement.sid != sid);
        rest
    }

    /// The policy without an action.
    #[must_use]
    pub fn without_action(&self, action: &str) -> Self {
        let mut rest = self.clone();
        for statement in &mut rest.statement {
            let kept = statement.action.iter().filter(|name| *name != action);
            statement.action = Many::Several(kept.map(str::to_owned).collect());
        }
        rest
    }

    /// The ids of the statements.
    pub fn sids(&self) -> impl Iterator<Item = &str> {
        self.statement
            .iter()
            .map(|statement| statement.sid.as_str())
    }

    /// The actions that statements name.
    pub fn actions(&self) -> impl Iterator<Item = &str> {
        self.statement
            .iter()
            .flat_map(|statement| statement.action.iter())
    }

    /// Judges a question: some statement allows it and none denies it.
    pub(crate) fn allows(&self, question: &Question) -> bool {
        let Version::V2012 = self.version;
        let effects = |effect| {
            let mut fitting = self.statement.iter().filter(|found| found.effect == effect);
            fitting.any(|statement| statement.fits(question))
        };
        effects(Effect::Allow) && !effects(Effect::Deny)
    }
}

impl Statement {
    fn fits(&self, question: &Question) -> bool {
        let action = format!("ec2:{}", question.action).to_ascii_lowercase();
        let mut actions = self.action.iter();
        let mut resources = self.resource.iter();
        actions.any(|pattern| WildMatch::new(&pattern.to_ascii_lowercase()).matches(&action))
            && resources.any(|pattern| WildMatch::new(pattern).matches(&question.resource))
            && self.condition.iter().all(|(operator, keys)| {
                let mut keys = keys.iter();
                keys.all(|(key, wanted)| operator.holds(question.context.get(key), wanted))
            })
    }
}

impl Operator {
    fn holds(self, found: Option<&[String]>, wanted: &Many) -> bool {
        let equal = |value: &String| wanted.iter().any(|wanted| wanted == value);
        let like = |value: &String| {
            let mut wanted = wanted.iter();
            wanted.any(|wanted| WildMatch::new(wanted).matches(value))
        };
        match self {
            Self::StringEquals | Self::AnyEqual => found.is_some_and(|all| all.iter().any(equal)),
            Self::StringLike | Self::ArnEquals | Self::ArnLike => {
                found.is_some_and(|all| all.iter().any(like))
            }
            Self::StringNotEquals => !found.is_some_and(|all| all.iter().any(equal)),
            Self::StringEqualsIfExists => found.is_none_or(|all| all.iter().any(equal)),
            Self::StringLikeIfExists => found.is_none_or(|all| all.iter().any(like)),
            Self::AllEqual => found.is_none_or(|all| all.iter().all(equal)),
            Self::AllLike => found.is_none_or(|all| all.iter().all(like)),
            Self::Null => wanted
                .iter()
                .all(|wanted| (wanted == "true") == found.is_none()),
        }
    }
}
