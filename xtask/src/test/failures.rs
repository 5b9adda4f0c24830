//! Failed tests and their messages, for the end of the run.

use std::fmt;

/// Lines of a message that are kept: the first ones, and the last ones. The cause of an error is at
/// the end; a process's log may come before it.
const HEAD: usize = 30;
const TAIL: usize = 20;
/// Characters of a line that are kept.
const WIDTH: usize = 400;
/// Characters of a failure in one line.
const BRIEF: usize = 300;
/// Begin of the message of a panic, in the middle of its first line.
const PANIC: &str = " panicked at ";
/// Begin of a backtrace, of a panic or of an error; its lines are indented.
const BACKTRACES: [&str; 2] = ["stack backtrace:", "Stack backtrace:"];
/// Begins of hints at backtraces.
const HINTS: [&str; 2] = [
    "note: run with `RUST_BACKTRACE=",
    "note: Some details are omitted",
];

/// A test that failed, or a program that ended unexpectedly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The name of the test or of the program.
    name: String,
    /// The message, one line each.
    message: Vec<String>,
}

impl Failure {
    /// A failure with a message of any number of lines.
    pub(crate) fn new(name: impl Into<String>, message: &str) -> Self {
        Self {
            name: name.into(),
            message: message.lines().map(str::to_owned).collect(),
        }
    }

    /// Puts the test's program before the name of a failure.
    pub(crate) fn of(self, program: &str) -> Self {
        Self {
            name: format!("{program}: {}", self.name),
            ..self
        }
    }

    /// A failure from libtest's captured output: the message begins at the first panic. A test that
    /// returns an error has none. Backtraces are omitted.
    fn captured((name, output): (String, Vec<String>)) -> Self {
        let panic = output.iter().position(|line| line.contains(PANIC));
        let mut message = Vec::new();
        let mut is_backtrace = false;
        for line in output.into_iter().skip(panic.unwrap_or(0)) {
            is_backtrace = BACKTRACES.contains(&line.as_str())
                || is_backtrace && line.starts_with(char::is_whitespace);
            let is_hint = HINTS.iter().any(|hint| line.starts_with(hint));
            if !(line.is_empty() || is_hint || is_backtrace) {
                message.push(line);
            }
        }
        Self { name, message }
    }

    /// The failure in one line: its name, and the first line of its message that is not
    /// the place of a panic.
    pub(crate) fn brief(&self) -> String {
        let mut lines = self.message.iter().filter(|line| !line.contains(PANIC));
        let first = lines.next().or_else(|| self.message.first());
        let first = first.map_or("no message", |line| line.trim());
        format!("{}: {first}", self.name)
            .chars()
            .take(BRIEF)
            .collect()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FAILED {}", self.name)?;
        if self.message.is_empty() {
            return f.write_str("\n    no message");
        }
        let left_out = self.message.len().saturating_sub(HEAD + TAIL);
        for (number, line) in self.message.iter().enumerate() {
            if number == HEAD && left_out > 0 {
                write!(f, "\n    ({left_out} lines are left out)")?;
            }
            if number < HEAD || number >= HEAD + left_out {
                let line: String = line.chars().take(WIDTH).collect();
                write!(f, "\n    {line}")?;
            }
        }
        Ok(())
    }
}

/// The part of libtest's output that a line is in.
#[derive(Debug, Default)]
enum Part {
    /// The results of tests, or the output of those that passed.
    #[default]
    Other,
    /// The output of failed tests, and the test that it belongs to.
    Output(Option<(String, Vec<String>)>),
    /// The names of failed tests.
    Names,
}

/// Reads failures from a test program's output.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    part: Part,
    found: Vec<Failure>,
    /// Number of failures found before the list that is being read.
    before: usize,
    slow: Vec<String>,
}

impl Reader {
    /// Reads a line.
    pub(crate) fn read(&mut self, line: &str) {
        match (&mut self.part, line) {
            (Part::Other, "failures:") => {
                self.before = self.found.len();
                self.part = Part::Output(None);
            }
            (Part::Other, _) => self.read_progress(line),
            (Part::Output(of), "failures:") => {
                self.found.extend(of.take().map(Failure::captured));
                self.part = Part::Names;
            }
            (Part::Output(of), _) => match (header(line), of) {
                (Some(name), of) => {
                    let before = of.replace((name.to_owned(), Vec::new()));
                    self.found.extend(before.map(Failure::captured));
                }
                (None, Some((_, output))) => output.push(line.to_owned()),
                (None, None) => {}
            },
            (Part::Names, _) => self.read_name(line),
        }
    }

    /// Reads the names of slow tests, and removes those that have ended.
    fn read_progress(&mut self, line: &str) {
        let Some((name, rest)) = line.strip_prefix("test ").and_then(|l| l.split_once(' ')) else {
            return;
        };
        if rest.starts_with("has been running for over") {
            self.slow.push(name.to_owned());
        } else if rest.starts_with("... ") {
            self.slow.retain(|slow| slow != name);
        }
    }

    /// Reads the name of a failed test: a test without output has only its name here.
    fn read_name(&mut self, line: &str) {
        match line.strip_prefix("    ") {
            Some(name) => {
                let mut known = self.found.iter().skip(self.before);
                if known.all(|known| known.name != name) {
                    self.found.push(Failure::new(name, ""));
                }
            }
            None => {
                if !line.is_empty() {
                    self.part = Part::Other;
                }
            }
        }
    }

    /// The tests that have run for over a minute and have not ended.
    pub(crate) fn unfinished(&self) -> &[String] {
        &self.slow
    }

    /// Ends the output of a program. A program that dies while it prints a failure leaves that
    /// open.
    pub(crate) fn end(&mut self) {
        if let Part::Output(of) = std::mem::take(&mut self.part) {
            self.found.extend(of.map(Failure::captured));
        }
    }

    /// Adds a failure outside of a test.
    pub(crate) fn add(&mut self, failure: Failure) {
        self.found.push(failure);
    }

    /// The failures so far.
    pub(crate) fn finish(mut self) -> Vec<Failure> {
        self.end();
        self.found
    }
}

/// The name in the line before the captured output of a test.
fn header(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

#[cfg(test)]
mod tests {
    use super::{BRIEF, Failure, HEAD, Reader, TAIL, WIDTH};

    /// The output of libtest with `--show-output`.
    const OUTPUT: &str = "
running 4 tests
test a ... ok
test b has been running for over 60 seconds
test b ... FAILED
test c ... FAILED
test d ... FAILED

successes:

---- a stdout ----
it failed to be wrong

successes:
    a

failures:

---- b stdout ----
a table
of rows

thread 'b' (12) panicked at bpf-tests/tests/services/table.rs:86:9:
kube-proxy nftables: 1 cells failed:
no service, V4 udp: timed out
stack backtrace:
   0: core::panicking::panic_fmt
             at /rustc/library/core/src/panicking.rs:80:14
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- c stdout ----
Error: an error that it returned


failures:
    b
    c
    d

test result: FAILED. 1 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out
";

    fn read(output: &str) -> Vec<Failure> {
        let mut reader = Reader::default();
        output.lines().for_each(|line| reader.read(line));
        reader.finish()
    }

    #[test]
    fn a_failure_has_the_message_of_its_panic() {
        let found = read(OUTPUT);
        let expected = [
            Failure::new(
                "b",
                "thread 'b' (12) panicked at bpf-tests/tests/services/table.rs:86:9:\n\
                 kube-proxy nftables: 1 cells failed:\nno service, V4 udp: timed out",
            ),
            Failure::new("c", "Error: an error that it returned"),
            Failure::new("d", ""),
        ];
        assert_eq!(found, expected);
        let [first, _, last] = &found[..] else {
            panic!("{found:?}");
        };
        let shown = first.clone().of("services").to_string();
        assert!(shown.starts_with("FAILED services: b\n    thread 'b'"));
        assert!(shown.ends_with("\n    no service, V4 udp: timed out"));
        assert_eq!(last.to_string(), "FAILED d\n    no message");
        let brief: Vec<_> = found.iter().map(Failure::brief).collect();
        let expected = [
            "b: kube-proxy nftables: 1 cells failed:",
            "c: Error: an error that it returned",
            "d: no message",
        ];
        assert_eq!(brief, expected);
    }

    #[test]
    fn two_programs_can_be_read_one_after_the_other() {
        let names: Vec<_> = read(&[OUTPUT, OUTPUT].concat())
            .into_iter()
            .map(|failure| failure.name)
            .collect();
        assert_eq!(names, ["b", "c", "d", "b", "c", "d"]);
    }

    #[test]
    fn a_program_that_dies_meanwhile_leaves_what_it_printed() {
        let (begun, _) = OUTPUT.split_once("stack").unwrap();
        assert_eq!(read(begun), read(OUTPUT)[..1]);
    }

    #[test]
    fn tests_that_hang_are_known() {
        let mut reader = Reader::default();
        for name in ["a", "b"] {
            reader.read(&format!("test {name} has been running for over 60 seconds"));
        }
        reader.read("test a ... ok");
        assert_eq!(reader.unfinished(), ["b"]);
    }

    #[test]
    fn of_a_long_message_begin_and_end_are_shown() {
        let lines: Vec<_> = (0..100).map(|number| format!("line {number}")).collect();
        let shown = Failure::new("long", &lines.join("\n")).to_string();
        assert_eq!(shown.lines().count(), 1 + HEAD + 1 + TAIL);
        assert!(shown.contains("line 29\n    (50 lines are left out)\n    line 80\n"));
        assert!(shown.ends_with("line 99"));
        let wide = Failure::new("wide", &"x".repeat(WIDTH + 1));
        assert_eq!(wide.to_string().lines().last().unwrap().trim().len(), WIDTH);
        assert_eq!(wide.brief().len(), BRIEF);
    }
}
