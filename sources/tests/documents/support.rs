//! Fixtures, and fixtures with something changed.

use datapath_common::mark::MarkLayout;
use loader::intent::Node;
use node_document::DocumentError;
use serde_json::Value;

pub(crate) const SECONDARY_YAML: &str =
    include_str!("../../../node-document/tests/fixtures/node-secondary-addresses.yaml");
pub(crate) const SECONDARY_JSON: &str =
    include_str!("../../../node-document/tests/fixtures/node-secondary-addresses.json");
pub(crate) const PREFIX_YAML: &str =
    include_str!("../../../node-document/tests/fixtures/node-prefix-delegation.yaml");

/// Path of the secondary ENI of the document with secondary addresses.
pub(crate) const ENI: &str = "/status/eni/enis/eni-0e979576c285fd4d5";
/// Path of the primary ENI there.
pub(crate) const PRIMARY: &str = "/status/eni/enis/eni-0a1f6e2d3c4b5a697";
/// Path of the secondary ENI of the document with prefixes.
pub(crate) const PREFIX_ENI: &str = "/status/eni/enis/eni-0f05f2edf01f99001";

pub(crate) fn parse(text: &str) -> Result<Node, DocumentError> {
    node_document::parse(text, MarkLayout::DEFAULT)
}

pub(crate) fn secondary() -> Value {
    serde_json::from_str(SECONDARY_JSON).expect("fixture")
}

pub(crate) fn prefix() -> Value {
    serde_yaml_ng::from_str(PREFIX_YAML).expect("fixture")
}

/// Sets the value at a pointer; the parent has to be there. `-` appends to a list.
pub(crate) fn set(document: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let key = key.replace("~1", "/");
    match document.pointer_mut(parent) {
        Some(Value::Object(map)) => {
            map.insert(key, value);
        }
        Some(Value::Array(list)) if key == "-" => list.push(value),
        Some(Value::Array(list)) => list[key.parse::<usize>().expect("an index")] = value,
        other => panic!("{pointer}: the parent is {other:?}"),
    }
}

/// Removes the field at a pointer.
pub(crate) fn remove(document: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let map = document.pointer_mut(parent).and_then(Value::as_object_mut);
    let removed = map.expect("an object").remove(key);
    assert!(removed.is_some(), "{pointer} is not in the fixture");
}

/// The one problem of a document that is refused as a whole, the same whether it is written as JSON or
/// as YAML.
pub(crate) fn error(document: &Value) -> String {
    let json = parse(&document.to_string()).expect_err("must be refused");
    let yaml = serde_yaml_ng::to_string(document).expect("YAML");
    let yaml = parse(&yaml).expect_err("must be refused");
    assert_eq!(json.problems().len(), 1, "{json}");
    assert_eq!(yaml.problems().len(), 1, "{yaml}");
    assert_eq!(json.problems()[0].path, yaml.problems()[0].path);
    json.to_string()
}

/// The only problem of a document, equal in both notations, and the node of its valid rest.
pub(crate) fn problem(document: &Value) -> (String, Node) {
    let json = parse(&document.to_string()).unwrap_or_else(|e| panic!("{e}"));
    let yaml = serde_yaml_ng::to_string(document).expect("YAML");
    let yaml = parse(&yaml).unwrap_or_else(|e| panic!("{e}"));
    let paths = |node: &Node| -> Vec<String> {
        node.unfollowed
            .refused
            .iter()
            .map(|p| p.path.clone())
            .collect()
    };
    assert_eq!(
        paths(&json),
        paths(&yaml),
        "{:?} {:?}",
        json.unfollowed.refused,
        yaml.unfollowed.refused
    );
    assert_eq!(
        json.unfollowed.refused.len(),
        1,
        "{:?}",
        json.unfollowed.refused
    );
    (json.unfollowed.refused[0].to_string(), json)
}

/// Why an entry that has no number has none.
pub(crate) fn reason<'a>(node: &'a Node, id: &str) -> &'a str {
    let other = node.others.iter().find(|other| other.id == id);
    let other = other.unwrap_or_else(|| panic!("{id} is among {:?}", node.enis));
    other.readiness.reason().expect("a reason")
}
