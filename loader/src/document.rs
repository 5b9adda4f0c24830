//! Reading a JSON or YAML text into a type, with errors that name the field.

use serde::{Deserialize, Deserializer};
use serde_path_to_error::Track;

/// Why a text is not a document of the wanted type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ReadError {
    /// Path of the field (`status.eni.enis.eni-0abc.number`); `document` for the whole text.
    pub path: String,
    /// What is wrong there: the value, what is allowed, line and column.
    pub message: String,
}

/// Reads a text: JSON when it begins with a brace, otherwise YAML. An empty YAML document is the
/// type's default.
///
/// # Errors
/// When the text is neither, or a field's value is not of the field's type.
pub(crate) fn read<'de, T>(text: &'de str) -> Result<T, ReadError>
where
    T: Deserialize<'de> + Default,
{
    let mut track = Track::new();
    let result = if text.trim_start().starts_with('{') {
        let mut json = serde_json::Deserializer::from_str(text);
        T::deserialize(serde_path_to_error::Deserializer::new(
            &mut json, &mut track,
        ))
        .and_then(|value| json.end().map(|()| value))
        .map_err(|e| e.to_string())
    } else {
        let yaml = serde_yaml_ng::Deserializer::from_str(text);
        // As an option, because a text of comments alone holds no value.
        Option::<T>::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
            .map(Option::unwrap_or_default)
            .map_err(|e| e.to_string())
    };
    result.map_err(|message| {
        let path = track.path().to_string();
        // The YAML reader writes the path too.
        let message = message
            .strip_prefix(&format!("{path}: "))
            .unwrap_or(&message)
            .to_owned();
        let path = if path == "." {
            "document".to_owned()
        } else {
            path
        };
        ReadError { path, message }
    })
}

/// Reads `null` as the type's default, as Kubernetes' own readers do.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
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
        let json = read::<Numbers>("{\"a\":\n[1, 300]}").unwrap_err();
        assert_eq!(json.path, "a[1]");
        assert!(json.message.contains("300") && json.message.contains("line 2"));
        let whole = read::<Numbers>("[1]").unwrap_err();
        assert_eq!(whole.path, "document");
    }

    #[test]
    fn more_than_one_document_is_refused() {
        assert!(read::<Numbers>("a: [1]\n---\nb: [2]\n").is_err());
        assert!(read::<Numbers>("{\"a\": [1]} {}").is_err());
    }
}
