//! A field of the node document that cannot be used.

use std::fmt;

/// Number of characters of a value that a message repeats.
const VALUE_CHARS: usize = 80;

/// One thing that is wrong with a node document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field (`status.eni.enis.eni-0abc.subnet.cidr`).
    pub path: String,
    /// The value and what is allowed.
    pub message: String,
}

impl Problem {
    /// A field's value is not allowed.
    #[must_use]
    pub fn refused(path: impl fmt::Display, value: &str, allowed: impl fmt::Display) -> Self {
        let message = if value.is_empty() {
            format!("missing; allowed: {allowed}")
        } else {
            let short: String = value.chars().take(VALUE_CHARS).collect();
            let more = if short.len() < value.len() { "…" } else { "" };
            format!("{short:?}{more} is refused; allowed: {allowed}")
        };
        Self {
            path: path.to_string(),
            message,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}
