//! Problems of a document, each with its path.

use std::collections::BTreeSet;
use std::fmt;

use document::ReadError;
use loader::intent::Problem;

/// Maximum number of problems of one document that are reported in full.
const LISTED: usize = 64;
/// Maximum number of problems in the reason of one ENI.
const REASONS: usize = 8;

/// Error for a node document that cannot be used at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentError {
    problems: Vec<Problem>,
}

impl DocumentError {
    /// The problems as they were found.
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
        Ok(())
    }
}

impl std::error::Error for DocumentError {}

impl From<Vec<Problem>> for DocumentError {
    fn from(problems: Vec<Problem>) -> Self {
        Self { problems }
    }
}

impl From<ReadError> for DocumentError {
    fn from(error: ReadError) -> Self {
        let ReadError { path, message } = error;
        vec![Problem { path, message }].into()
    }
}

/// Collects problems and notes while a document is checked.
#[derive(Debug, Default)]
pub(super) struct Findings {
    problems: Vec<Problem>,
    paths: BTreeSet<String>,
    notes: Vec<String>,
}

impl Findings {
    /// Adds a field whose value is not allowed.
    pub(super) fn refuse(
        &mut self,
        path: impl fmt::Display,
        value: &str,
        allowed: impl fmt::Display,
    ) {
        self.put(Problem::refused(path, value, allowed));
    }

    /// Adds a field that contradicts another one.
    pub(super) fn add(&mut self, path: impl fmt::Display, message: impl fmt::Display) {
        self.put(Problem {
            path: path.to_string(),
            message: message.to_string(),
        });
    }

    /// Adds a problem, unless the field or one that contains it already has one.
    pub(super) fn put(&mut self, problem: Problem) {
        let path = &problem.path;
        let ends = path.match_indices(['.', '[']);
        let mut outer = ends.filter_map(|(end, _)| path.get(..end));
        if outer.any(|outer| self.paths.contains(outer)) {
            return;
        }
        if self.paths.insert(path.clone()) {
            self.problems.push(problem);
        }
    }

    /// Adds a note for the user about a valid document.
    pub(super) fn note(&mut self, path: impl fmt::Display, message: impl fmt::Display) {
        self.notes.push(format!("{path}: {message}"));
    }

    /// Adds the problems and notes of other findings.
    pub(super) fn extend(&mut self, other: Self) {
        self.notes.extend(other.notes);
        for problem in other.problems {
            self.put(problem);
        }
    }

    /// The problems as one reason; none without a problem.
    pub(super) fn reason(&self) -> Option<String> {
        let shown = self.problems.iter().take(REASONS);
        let mut reasons: Vec<_> = shown.map(ToString::to_string).collect();
        let more = self.problems.len().saturating_sub(REASONS);
        if more > 0 {
            reasons.push(format!("and {more} more problems"));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// The problems, at most [`LISTED`] of them in full, and the notes.
    pub(super) fn finish(mut self) -> (Vec<Problem>, Vec<String>) {
        let more = self.problems.len().saturating_sub(LISTED);
        if more > 0 {
            self.problems.truncate(LISTED);
            self.problems.push(Problem {
                path: "document".to_owned(),
                message: format!("{more} more problems"),
            });
        }
        (self.problems, self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum number of a value's characters in a message.
    const VALUE_CHARS: usize = 80;

    #[test]
    fn many_problems_are_bounded_and_counted() {
        let mut findings = Findings::default();
        for i in 0..LISTED + 3 {
            findings.refuse(format_args!("a[{i}]"), &"x".repeat(1000), "nothing");
        }
        let reason = findings.reason().unwrap();
        assert!(reason.starts_with("a[0]: \"xx"), "{reason}");
        assert!(reason.ends_with("; and 59 more problems"), "{reason}");
        assert!(reason.len() < REASONS * (VALUE_CHARS + 60), "{reason}");
        let (problems, _) = findings.finish();
        assert_eq!(problems.len(), LISTED + 1);
        assert_eq!(problems[LISTED].message, "3 more problems");
    }

    #[test]
    fn the_first_problem_of_a_field_stands() {
        let mut findings = Findings::default();
        findings.add("a", "first");
        findings.refuse("a", "", "second");
        findings.refuse("a.b", "", "third");
        findings.refuse("a[0]", "", "fourth");
        findings.add("ab", "fifth");
        assert_eq!(findings.reason().as_deref(), Some("a: first; ab: fifth"));
    }
}
