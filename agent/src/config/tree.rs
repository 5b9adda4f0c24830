//! The configuration as a tree of YAML values.

use serde_yaml_ng::Value;

/// The value at a path of keys.
pub(super) fn find<'a>(tree: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(tree, |tree, part| tree.get(part))
}

/// A value in one line.
pub(super) fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "null".to_owned(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(value)) => value.to_string(),
        Some(Value::String(value)) => value.clone(),
        Some(Value::Sequence(values)) => {
            let values: Vec<String> = values.iter().map(|v| text(Some(v))).collect();
            format!("[{}]", values.join(", "))
        }
        Some(Value::Mapping(map)) => {
            let pairs: Vec<String> = map
                .iter()
                .map(|(k, v)| format!("{}: {}", text(Some(k)), text(Some(v))))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Some(Value::Tagged(tagged)) => text(Some(&tagged.value)),
    }
}

/// The paths of all leaves below maps.
pub(super) fn leaves(tree: &Value) -> Vec<String> {
    fn walk(tree: &Value, path: &str, out: &mut Vec<String>) {
        match tree {
            Value::Mapping(map) => {
                for (key, value) in map {
                    let key = text(Some(key));
                    let path = if path.is_empty() {
                        key
                    } else {
                        format!("{path}.{key}")
                    };
                    walk(value, &path, out);
                }
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Sequence(_)
            | Value::Tagged(_) => out.push(path.to_owned()),
        }
    }
    let mut out = Vec::new();
    walk(tree, "", &mut out);
    out
}
