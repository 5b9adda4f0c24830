//! The place of a refused value in a YAML text.
//!
//! The reader knows the place of what it reads. A value that its own type refuses is read by then,
//! and the reader names the beginning of the map or list that has it.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_path_to_error::{Path, Segment};
use serde_yaml_ng::{Error, Value};

/// The text of an error about the field at a path, with the line of that field.
pub(crate) fn message(error: &Error, text: &str, path: &Path) -> String {
    let message = error.to_string();
    let (Some(named), Some(found)) = (error.location(), find(text, path)) else {
        return message;
    };
    let end = format!(" at line {} column {}", named.line(), named.column());
    let cause = match message.strip_suffix(&end) {
        Some(_) if named.line() == found.0 => return message,
        Some(cause) => cause,
        // The beginning of the text is a place that the reader leaves out.
        None => &message,
    };
    format!("{cause} at line {} column {}", found.0, found.1)
}

/// Line and column of the value at a path, both from 1.
fn find(text: &str, path: &Path) -> Option<(usize, usize)> {
    let path: Vec<&Segment> = path.iter().collect();
    let yaml = serde_yaml_ng::Deserializer::from_str(text);
    let place = Wanted(&path).deserialize(yaml).err()?.location()?;
    Some((place.line(), place.column()))
}

/// The value below this path. Reading it is an error, which has its place.
struct Wanted<'a>(&'a [&'a Segment]);

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map or a list above the value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((Segment::Map { key } | Segment::Enum { variant: key }, below)) =
            self.0.split_first()
        else {
            return Err(A::Error::custom("here"));
        };
        while let Some(name) = map.next_key::<Value>()? {
            if name.as_str() == Some(key) {
                map.next_value_seed(Wanted(below))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Some((Segment::Seq { index }, below)) = self.0.split_first() else {
            return Err(A::Error::custom("here"));
        };
        for _ in 0..*index {
            seq.next_element::<IgnoredAny>()?;
        }
        seq.next_element_seed(Wanted(below)).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use crate::read;

    /// A number that its type may refuse.
    #[derive(Debug, Default)]
    struct Small;

    impl<'de> Deserialize<'de> for Small {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            match u32::deserialize(deserializer)? {
                0..10 => Ok(Self),
                number => Err(serde::de::Error::custom(format_args!(
                    "{number} is refused"
                ))),
            }
        }
    }

    #[test]
    fn a_refused_value_has_the_line_that_it_is_on() {
        type Map = BTreeMap<String, BTreeMap<String, Vec<Small>>>;
        for (text, expected) in [
            (
                "a:\n  b: [1]\n  c: [1, 20]\n",
                "a.c[1]: 20 is refused at line 3 column 6",
            ),
            (
                "# a\na:\n  b:\n  - 1\n  - 2\n  - 30\n",
                "a.b[2]: 30 is refused at line 6 column 5",
            ),
            (
                "a:\n  b: 7\n",
                "a.b: invalid type: integer `7`, expected a sequence at line 2 column 6",
            ),
        ] {
            let error = read::<Map>(text).unwrap_err().to_string();
            assert_eq!(error, expected, "{text}");
        }
        let error = read::<BTreeMap<String, Option<Small>>>("a: 1\nb: 20\n").unwrap_err();
        assert_eq!(error.to_string(), "b: 20 is refused at line 2 column 4");
    }
}
