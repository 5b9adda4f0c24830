//! JSON and YAML texts read into types, with errors that name the field; settings from types.

mod file;
mod place;
pub mod settings;

use serde::{Deserialize, Deserializer};
use serde_path_to_error::{Path, Track};

pub use self::file::{FileError, SIZE_MAX, read_file, read_file_up_to};

/// Most opening brackets and braces in a YAML text. The YAML scanner's time grows with the square
/// of their depth: 80,000 take it 20 s, a document full of them would take it a day. What
/// Kubernetes writes as YAML has next to none.
const YAML_BRACKETS_MAX: usize = 16_384;

/// Why a text is not a document of the wanted type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ReadError {
    /// Path of the field (`status.eni.enis.eni-0abc.number`); `document` for the whole text.
    pub path: String,
    /// The message: the value, the allowed ones, line and column.
    pub message: String,
}

/// Reads a text: JSON when it begins with a brace, otherwise YAML. An empty YAML document is the
/// type's default.
///
/// # Errors
/// When the text is neither, or a field's value is not of the field's type.
pub fn read<'de, T>(text: &'de str) -> Result<T, ReadError>
where
    T: Deserialize<'de> + Default,
{
    if is_json(text) {
        return read_json(text);
    }
    check_brackets(text)?;
    read_yaml(text)
}

/// True if a text is taken for JSON.
#[must_use]
pub fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// Reads a JSON text.
///
/// # Errors
/// As [`read`].
pub fn read_json<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, ReadError> {
    let mut track = Track::new();
    let mut json = serde_json::Deserializer::from_str(text);
    let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let value = T::deserialize(tracked).and_then(|value| json.end().map(|()| value));
    value.map_err(|error| ReadError::new(&track.path(), &error.to_string()))
}

/// Reads a YAML text that does not have too many brackets.
///
/// # Errors
/// As [`read`].
pub fn read_yaml<'de, T>(text: &'de str) -> Result<T, ReadError>
where
    T: Deserialize<'de> + Default,
{
    let mut track = Track::new();
    let yaml = serde_yaml_ng::Deserializer::from_str(text);
    // As an option, because a text of comments alone holds no value.
    let tracked = serde_path_to_error::Deserializer::new(yaml, &mut track);
    let value = Option::<T>::deserialize(tracked).map(Option::unwrap_or_default);
    value.map_err(|error| {
        let path = track.path();
        ReadError::new(&path, &place::message(&error, text, &path))
    })
}

impl ReadError {
    fn new(path: &Path, message: &str) -> Self {
        let path = path.to_string();
        let message = without_path(message, &path).to_owned();
        // An unknown part of the path is "?" at its end, and the whole document is ".".
        let known = path.strip_suffix(".?").unwrap_or(&path);
        let path = match known {
            "." | "?" => "document",
            known => known,
        };
        Self {
            path: path.to_owned(),
            message,
        }
    }
}

/// Reads all documents of a text: one in JSON if it begins with a brace, otherwise any number in
/// YAML. A document of another type hides no other one. The text after invalid YAML cannot be
/// separated from it, so that place is the last one.
pub fn read_all<'de, T>(text: &'de str) -> Vec<Result<T, ReadError>>
where
    T: Deserialize<'de> + Default,
{
    if text.trim_start().starts_with('{') {
        return vec![read(text)];
    }
    if let Err(error) = check_brackets(text) {
        return vec![Err(error)];
    }
    let mut all: Vec<Result<T, ReadError>> = Vec::new();
    for yaml in serde_yaml_ng::Deserializer::from_str(text) {
        let mut track = Track::new();
        let value =
            Option::<T>::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track));
        let value = value.map(Option::unwrap_or_default);
        let value = value.map_err(|error| ReadError::new(&track.path(), &error.to_string()));
        // The reader comes no further than a place that is no YAML, and never ends there.
        let is_stuck = matches!(
            (&value, all.last()),
            (Err(ReadError { message, .. }), Some(Err(last))) if last.message == *message
        );
        if is_stuck {
            break;
        }
        all.push(value);
    }
    all
}

/// The YAML reader puts the path before its messages too, sometimes the parent's.
fn without_path<'a>(message: &'a str, path: &str) -> &'a str {
    match message.split_once(": ") {
        Some((head, rest))
            if path
                .strip_prefix(head)
                .is_some_and(|tail| tail.is_empty() || tail.starts_with(['.', '['])) =>
        {
            rest
        }
        Some(_) | None => message,
    }
}

fn check_brackets(text: &str) -> Result<(), ReadError> {
    let count = text.bytes().filter(|b| matches!(b, b'[' | b'{')).count();
    if count <= YAML_BRACKETS_MAX {
        return Ok(());
    }
    Err(ReadError {
        path: "document".to_owned(),
        message: format!(
            "{count} opening brackets; allowed in YAML: at most {YAML_BRACKETS_MAX}, in JSON any \
             number"
        ),
    })
}

/// Reads `null` as the type's default, as Kubernetes' own readers do.
///
/// # Errors
/// Those of the type.
pub fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Numbers = BTreeMap<String, Vec<u8>>;

    #[test]
    fn reads_both_notations_and_nothing_at_all() {
        let expected = Numbers::from([("a".to_owned(), vec![1, 2])]);
        assert_eq!(read::<Numbers>(" {\"a\": [1, 2]}\n").unwrap(), expected);
        assert_eq!(read::<Numbers>("a: [1, 2]").unwrap(), expected);
        for text in ["", "\n\n", "# only a comment\n", "---\n", "null"] {
            assert_eq!(read::<Numbers>(text).unwrap(), Numbers::new(), "{text:?}");
        }
    }

    #[test]
    fn errors_name_path_and_position_once() {
        let yaml = read::<Numbers>("a:\n- 1\n- x\n").unwrap_err();
        assert_eq!(yaml.path, "a[1]");
        assert_eq!(
            yaml.message,
            "invalid type: string \"x\", expected u8 at line 3 column 3"
        );
        let list = read::<Numbers>("a: 1").unwrap_err();
        assert_eq!(list.path, "a");
        assert!(list.message.starts_with("invalid type: integer `1`"));
        let json = read::<Numbers>("{\"a\":\n[1, 300]}").unwrap_err();
        assert_eq!(json.path, "a[1]");
        assert!(json.message.contains("300") && json.message.contains("line 2"));
        let whole = read::<Numbers>("[1]").unwrap_err();
        assert_eq!(whole.path, "document");
        for (cut, path) in [
            ("{", "document"),
            ("{\"a\": {", "a"),
            ("{\"a\": {\"b\": [", "a.b"),
        ] {
            let error = read::<BTreeMap<String, Numbers>>(cut).unwrap_err();
            assert_eq!(error.path, path, "{cut}");
            assert!(error.message.starts_with("EOF while parsing"), "{error}");
        }
    }

    #[test]
    fn a_document_that_is_none_hides_no_other_one() {
        let all = read_all::<Numbers>("a: [1]\n---\nb: 7\n---\nc: [2]\n---\n");
        let are_good: Vec<_> = all.iter().map(Result::is_ok).collect();
        assert_eq!(are_good, [true, false, true, true]);
        let all = read_all::<Numbers>("a: [1]\n---\nb: [\n---\nc: [2]\n");
        assert!(
            all.len() == 2 && all[0].is_ok() && all[1].is_err(),
            "{all:?}"
        );
    }

    #[test]
    fn more_than_one_document_is_refused() {
        assert!(read::<Numbers>("a: [1]\n---\nb: [2]\n").is_err());
        assert!(read::<Numbers>("{\"a\": [1]} {}").is_err());
    }
}
