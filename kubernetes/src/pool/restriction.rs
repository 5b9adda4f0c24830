//! Which pods a pool admits: an annotation of the pool.

use std::collections::BTreeSet;
use std::fmt;

pub use ipam::node::RESTRICT;
use serde_json::Value;

/// The pods that a pool admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restriction {
    /// Those that its own selectors select.
    Selectors,
    /// Those of these namespaces.
    Namespaces(BTreeSet<String>),
    /// None, because the annotation cannot be read: its value.
    Nobody(String),
}

impl fmt::Display for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Selectors => f.write_str("pods that its selectors select (selectors)"),
            Self::Namespaces(names) => {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                let names = names.join(",");
                write!(f, "pods of some namespaces (namespaces={names})")
            }
            Self::Nobody(value) => write!(f, "no pod, because {value} cannot be read"),
        }
    }
}

/// Reads the restriction of a pool's object. An unreadable one is reported. Then the `last` one
/// stays in force. Without a last one no pod is admitted, since a restriction is wanted.
pub(crate) fn restriction(
    object: &Value,
    last: Option<&Restriction>,
    tell: impl FnOnce(String),
) -> Option<Restriction> {
    let value = annotation(object)?;
    let read = value.as_str().and_then(parse);
    Some(read.unwrap_or_else(|| {
        let allowed = "allowed: selectors, or namespaces= and the names of namespaces with commas \
                       between";
        let refused = format!(": metadata.annotations.{RESTRICT}: {value} is refused, and");
        match last {
            Some(last) if !matches!(last, Restriction::Nobody(_)) => {
                tell(format!(
                    "{refused} the last good one admits {last}; {allowed}"
                ));
                last.clone()
            }
            Some(_) | None => {
                tell(format!(
                    "{refused} no pod may have the pool by an annotation or by selectors; {allowed}"
                ));
                Restriction::Nobody(value.to_string())
            }
        }
    }))
}

/// True if the restriction of a pool's object can be read, or if there is none.
#[must_use]
pub fn is_good(object: &Value) -> bool {
    annotation(object).is_none_or(|value| value.as_str().and_then(parse).is_some())
}

fn annotation(object: &Value) -> Option<&Value> {
    match object.get("metadata")?.get("annotations")? {
        Value::Null => None,
        Value::Object(all) => all.get(RESTRICT),
        // There may be one in it.
        other => Some(other),
    }
}

fn parse(text: &str) -> Option<Restriction> {
    let text = text.trim();
    if text == "selectors" {
        return Some(Restriction::Selectors);
    }
    let names = text.strip_prefix("namespaces=")?;
    let names: BTreeSet<_> = names
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    let are_names = names.iter().all(|name| is_name(name));
    are_names.then_some(Restriction::Namespaces(names))
}

/// True for what a namespace can be called (RFC 1123 label).
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_any = |byte: u8| is_inner(byte) || byte == b'-';
    let bytes = name.as_bytes();
    let are_ends_good = |ends: Option<&u8>| ends.is_some_and(|byte| is_inner(*byte));
    bytes.len() <= 63
        && bytes.iter().all(|byte| is_any(*byte))
        && are_ends_good(bytes.first())
        && are_ends_good(bytes.last())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(annotations: &Value) -> (Option<Restriction>, Option<String>) {
        let mut reported = None;
        let object = json!({"metadata": {"annotations": annotations}});
        let read = restriction(&object, None, |reason| reported = Some(reason));
        (read, reported)
    }

    #[test]
    fn a_restriction_is_selectors_or_names_of_namespaces() {
        let of = |value: &str| read(&json!({RESTRICT: value}));
        assert_eq!(of("selectors"), (Some(Restriction::Selectors), None));
        let names = ["a", "b-1"].map(str::to_owned).into();
        let both = Some(Restriction::Namespaces(names));
        assert_eq!(of("namespaces=a, b-1"), (both, None));
        for none in [json!(null), json!({}), json!({"other": 7})] {
            assert_eq!(read(&none), (None, None), "{none}");
        }
    }

    #[test]
    fn one_that_cannot_be_read_admits_nobody_and_is_told() {
        let texts = [
            "",
            "Selectors",
            "selector",
            "namespaces",
            "namespaces=",
            "namespaces=a,",
            "namespaces=a b",
            "namespaces=*",
            "namespaces=A",
            "namespace=a",
            "namespaces=-a",
        ];
        let values = texts.map(|text| json!({RESTRICT: text}));
        let others = [
            json!({RESTRICT: 7}),
            json!({RESTRICT: ["a"]}),
            json!({RESTRICT: null}),
            json!("a"),
        ];
        for annotations in values.into_iter().chain(others) {
            let (read, reported) = read(&annotations);
            assert!(
                matches!(read, Some(Restriction::Nobody(_))),
                "{annotations}"
            );
            assert!(
                reported
                    .unwrap()
                    .contains("allowed: selectors, or namespaces=")
            );
        }
    }
}
