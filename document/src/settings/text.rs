//! Values and help as text.

use serde_yaml_ng::Value;

/// The widest line of a file or a page, in characters.
pub(super) const WIDTH: usize = 100;

/// A value on one line, for people.
pub(super) fn plain(value: &Value) -> String {
    flow(value, &scalar)
}

/// A value on one line that is YAML. Words that an older reader of YAML takes for a truth value are
/// quoted.
pub(super) fn yaml(value: &Value) -> String {
    flow(value, &|value| match value.as_str() {
        Some("on" | "off" | "yes" | "no" | "") => format!("\"{}\"", scalar(value)),
        Some(_) | None => scalar(value),
    })
}

/// A value of single values, each written by `write`.
fn flow(value: &Value, write: &impl Fn(&Value) -> String) -> String {
    match value {
        Value::Sequence(values) => {
            let values: Vec<String> = values.iter().map(|value| flow(value, write)).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Mapping(map) => {
            let pair = |(key, value)| format!("{}: {}", flow(key, write), flow(value, write));
            let pairs: Vec<String> = map.iter().map(pair).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Tagged(tagged) => flow(&tagged.value, write),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => write(value),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(value) => value.clone(),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => {
            "null".to_owned()
        }
    }
}

/// A text in lines of at most `width` characters, unless a word is longer.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let has_room =
            |line: &&mut String| line.chars().count() + 1 + word.chars().count() <= width;
        match lines.last_mut().filter(has_room) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
