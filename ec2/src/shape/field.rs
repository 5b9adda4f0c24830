//! Fields of EC2's answers: each is checked before it is used.

use std::fmt::Display;
use std::str::FromStr;

use aws_sdk_ec2::types::Tag;
use cloud::Tags;

/// A field of an answer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: {fault}")]
pub(crate) struct FieldError {
    object: String,
    field: &'static str,
    fault: String,
}

/// An object of an answer, by its id or by its place in the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a>(pub(crate) &'a str);

impl Object<'_> {
    pub(crate) fn fault(self, field: &'static str, fault: impl Display) -> FieldError {
        FieldError {
            object: self.0.to_owned(),
            field,
            fault: fault.to_string(),
        }
    }

    /// A field that every such object has.
    pub(crate) fn required<T>(
        self,
        field: &'static str,
        value: Option<T>,
    ) -> Result<T, FieldError> {
        value.ok_or_else(|| self.fault(field, "missing, expected a value"))
    }

    /// An id that every such object has.
    pub(crate) fn id<T>(
        self,
        field: &'static str,
        value: Option<&str>,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, FieldError> {
        let id = value.and_then(parse);
        id.ok_or_else(|| self.fault(field, "missing or empty, expected an id"))
    }

    /// A text that stands for a value.
    pub(crate) fn parse<T>(self, field: &'static str, text: &str) -> Result<T, FieldError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let value = text.parse();
        value.map_err(|error| self.fault(field, format!("{text:?}: {error}")))
    }

    /// A text that stands for a value, if it is there. EC2 writes an empty one where it has none.
    pub(crate) fn parse_some<T>(
        self,
        field: &'static str,
        text: Option<&str>,
    ) -> Result<Option<T>, FieldError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let text = text.filter(|it| !it.is_empty());
        text.map(|it| self.parse(field, it)).transpose()
    }

    /// A number of a smaller range than that of the wire.
    pub(crate) fn number<T>(self, field: &'static str, value: i32) -> Result<T, FieldError>
    where
        T: TryFrom<i32>,
        T::Error: Display,
    {
        let number = T::try_from(value);
        number.map_err(|error| self.fault(field, format!("{value}: {error}")))
    }
}

/// The tags of an object.
pub(crate) fn tags(tags: &[Tag]) -> Tags {
    let pairs = tags.iter().filter_map(|tag| {
        let value = tag.value().unwrap_or_default();
        Some((tag.key()?.to_owned(), value.to_owned()))
    });
    pairs.collect()
}
