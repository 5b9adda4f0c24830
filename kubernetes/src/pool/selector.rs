//! Label selectors, with the meaning that Kubernetes gives them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// Longest name of a label's key (Kubernetes, "Labels and Selectors", "Syntax and character set").
const NAME_MAX: usize = 63;
/// Longest prefix of one.
const PREFIX_MAX: usize = 253;

/// A label selector. One without requirements selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", try_from = "Document")]
pub struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

/// Why a selector means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// No label has such a key.
    #[error("key {0:?} is refused; allowed: the key of a label (app, example.com/app)")]
    Key(String),
    /// The operator is unknown.
    #[error("operator {0:?} is refused; allowed: In, NotIn, Exists, DoesNotExist")]
    Operator(String),
    /// `In` and `NotIn` need values.
    #[error("operator {operator} of key {key:?} has no values; allowed: one at least")]
    NoValues {
        /// The operator.
        operator: String,
        /// The label's key.
        key: String,
    },
    /// `Exists` and `DoesNotExist` take none.
    #[error("operator {operator} of key {key:?} has values; allowed: none")]
    Values {
        /// The operator.
        operator: String,
        /// The label's key.
        key: String,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    match_labels: Option<BTreeMap<String, String>>,
    match_expressions: Option<Vec<Expression>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Expression {
    key: String,
    operator: String,
    values: Option<BTreeSet<String>>,
}

impl Selector {
    /// True if it selects what has these labels.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            match &requirement.test {
                Test::In(values) => value.is_some_and(|value| values.contains(value)),
                Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Test::Exists => value.is_some(),
                Test::DoesNotExist => value.is_none(),
            }
        })
    }
}

impl TryFrom<Document> for Selector {
    type Error = SelectorError;

    fn try_from(document: Document) -> Result<Self, SelectorError> {
        let labels = document.match_labels.unwrap_or_default();
        labels.keys().try_for_each(|key| check_key(key))?;
        let mut requirements: Vec<_> = labels
            .into_iter()
            .map(|(key, value)| Requirement {
                key,
                test: Test::In([value].into()),
            })
            .collect();
        for expression in document.match_expressions.unwrap_or_default() {
            requirements.push(expression.try_into()?);
        }
        Ok(Self { requirements })
    }
}

impl TryFrom<Expression> for Requirement {
    type Error = SelectorError;

    fn try_from(expression: Expression) -> Result<Self, SelectorError> {
        let Expression {
            key,
            operator,
            values,
        } = expression;
        check_key(&key)?;
        let values = values.unwrap_or_default();
        let test = match (operator.as_str(), values.is_empty()) {
            ("In", false) => Test::In(values),
            ("NotIn", false) => Test::NotIn(values),
            ("Exists", true) => Test::Exists,
            ("DoesNotExist", true) => Test::DoesNotExist,
            ("In" | "NotIn", true) => return Err(SelectorError::NoValues { operator, key }),
            ("Exists" | "DoesNotExist", false) => {
                return Err(SelectorError::Values { operator, key });
            }
            _ => return Err(SelectorError::Operator(operator)),
        };
        Ok(Self { key, test })
    }
}

/// Checks the key of a requirement. With a key that no label can have, most operators would select
/// all objects.
fn check_key(key: &str) -> Result<(), SelectorError> {
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("a", key));
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_part = |part: &str, longest| {
        let ends = [part.bytes().next(), part.bytes().last()];
        let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        part.len() <= longest && part.bytes().all(is_inner) && ends.into_iter().all(is_end)
    };
    if is_part(prefix, PREFIX_MAX) && is_part(name, NAME_MAX) {
        return Ok(());
    }
    Err(SelectorError::Key(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selects(selector: Value, labels: &[(&str, &str)]) -> bool {
        let selector: Selector = serde_json::from_value(selector).unwrap();
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        selector.matches(&labels.collect())
    }

    #[test]
    fn requirements_mean_what_kubernetes_says() {
        let expression = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]});
        let with_labels = json!({"matchLabels": {"a": "1", "b": "2"}});
        let prefixed = json!({"matchLabels": {"example.com/A_b.c-d": "1"}});
        assert!(selects(prefixed, &[("example.com/A_b.c-d", "1")]));
        // Selector, and whether it selects nothing, a=1, a=2, a=1 with b=2.
        for (selector, expected) in [
            (json!({}), [true, true, true, true]),
            (
                json!({"matchLabels": null, "matchExpressions": null}),
                [true; 4],
            ),
            (with_labels, [false, false, false, true]),
            (expression("In", &["1", "3"]), [false, true, false, true]),
            (expression("NotIn", &["1"]), [true, false, true, false]),
            (expression("Exists", &[]), [false, true, true, true]),
            (expression("DoesNotExist", &[]), [true, false, false, false]),
        ] {
            let labels: [&[_]; 4] = [&[], &[("a", "1")], &[("a", "2")], &[("a", "1"), ("b", "2")]];
            assert_eq!(
                labels.map(|labels| selects(selector.clone(), labels)),
                expected,
                "{selector}"
            );
        }
    }

    #[test]
    fn what_means_nothing_is_refused_with_what_is_allowed() {
        let error = |operator: &str, values: &[&str]| {
            let expressions = json!([{"key": "a", "operator": operator, "values": values}]);
            let document = json!({"matchExpressions": expressions});
            serde_json::from_value::<Selector>(document)
                .unwrap_err()
                .to_string()
        };
        assert!(error("Like", &["1"]).contains("\"Like\" is refused; allowed: In, NotIn"));
        assert!(error("In", &[]).contains("In of key \"a\" has no values"));
        assert!(error("Exists", &["1"]).contains("Exists of key \"a\" has values"));
        let long = "a".repeat(64);
        for key in ["", "a b", "-a", "a/", "/a", "a/b/c", "ä", long.as_str()] {
            for document in [
                json!({"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]}),
                json!({"matchLabels": {key: "1"}}),
            ] {
                let error = serde_json::from_value::<Selector>(document).unwrap_err();
                let error = error.to_string();
                assert!(
                    error.contains("allowed: the key of a label"),
                    "{key}: {error}"
                );
            }
        }
        let keyless = json!({"matchExpressions": [{"operator": "NotIn", "values": ["1"]}]});
        assert!(serde_json::from_value::<Selector>(keyless).is_err());
    }
}
