//! What is wrong with a document: all of it, each with its place.

use std::fmt;

use crate::document::ReadError;

/// How many problems of one document are told in full.
const LISTED: usize = 16;
/// How many characters of a value are repeated in a message.
const VALUE_CHARS: usize = 80;

/// One thing that is wrong with a node document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field (`status.eni.enis.eni-0abc.subnet.cidr`).
    pub path: String,
    /// The value and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A node document cannot be used. Nothing of it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentError {
    problems: Vec<Problem>,
    unlisted: usize,
}

impl DocumentError {
    /// The problems as they were found; of very many the first ones.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            fmt::Display::fmt(problem, f)?;
        }
        if self.unlisted > 0 {
            write!(f, "; and {} more problems", self.unlisted)?;
        }
        Ok(())
    }
}

impl std::error::Error for DocumentError {}

impl From<ReadError> for DocumentError {
    fn from(error: ReadError) -> Self {
        let ReadError { path, message } = error;
        Self {
            problems: vec![Problem { path, message }],
            unlisted: 0,
        }
    }
}

/// Collects problems and notes while a document is checked.
#[derive(Debug, Default)]
pub(super) struct Findings {
    problems: Vec<Problem>,
    unlisted: usize,
    notes: Vec<String>,
}

impl Findings {
    /// A field's value is not allowed.
    pub(super) fn refuse(
        &mut self,
        path: impl fmt::Display,
        value: &str,
        allowed: impl fmt::Display,
    ) {
        if value.is_empty() {
            self.add(path, format_args!("missing; allowed: {allowed}"));
        } else {
            let short: String = value.chars().take(VALUE_CHARS).collect();
            let more = if short.len() < value.len() { "…" } else { "" };
            self.add(
                path,
                format_args!("{short:?}{more} is refused; allowed: {allowed}"),
            );
        }
    }

    /// A field is wrong in relation to another one.
    pub(super) fn add(&mut self, path: impl fmt::Display, message: impl fmt::Display) {
        if self.problems.len() < LISTED {
            self.problems.push(Problem {
                path: path.to_string(),
                message: message.to_string(),
            });
        } else {
            self.unlisted += 1;
        }
    }

    /// Something that a user may wonder about, though the document is good.
    pub(super) fn note(&mut self, path: impl fmt::Display, message: impl fmt::Display) {
        self.notes.push(format!("{path}: {message}"));
    }

    /// The notes, when there is no problem.
    pub(super) fn finish(self) -> Result<Vec<String>, DocumentError> {
        if self.problems.is_empty() {
            return Ok(self.notes);
        }
        Err(DocumentError {
            problems: self.problems,
            unlisted: self.unlisted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_problems_are_bounded_and_counted() {
        let mut findings = Findings::default();
        for i in 0..LISTED + 3 {
            findings.refuse(format_args!("a[{i}]"), &"x".repeat(1000), "nothing");
        }
        let error = findings.finish().unwrap_err();
        assert_eq!(error.problems().len(), LISTED);
        let text = error.to_string();
        assert!(text.starts_with("a[0]: \"xx"), "{text}");
        assert!(text.ends_with("; and 3 more problems"), "{text}");
        assert!(text.len() < LISTED * (VALUE_CHARS + 60), "{text}");
    }
}
