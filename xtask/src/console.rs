//! Output of xtask: its own messages go to standard error, as standard output belongs to results.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context as _, Result};

/// Prints the next step.
pub(crate) fn note(text: &str) {
    eprintln!("==> {text}");
}

/// Prints a result, and ends its last line.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn result(text: &str) -> Result<()> {
    write_to(&mut io::stdout().lock(), text)
}

fn write_to(to: &mut impl Write, text: &str) -> Result<()> {
    match writeln!(to, "{text}").and_then(|()| to.flush()) {
        // The reader has closed the pipe (`| head`).
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to standard output"),
    }
}

/// Lays rows out as a table: the first column to the left, all others to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .into_iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut text = line(header.to_vec());
    for row in rows {
        text.push('\n');
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind, Write};

    use super::{table, write_to};

    /// Fails with each write.
    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        assert!(write_to(&mut Failing(ErrorKind::BrokenPipe), "x").is_ok());
        assert!(write_to(&mut Failing(ErrorKind::StorageFull), "x").is_err());
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["bpf".to_owned(), "7".to_owned()],
            vec!["netns".to_owned(), "120".to_owned()],
        ];
        let text = table(&["suite", "passed"], &rows);
        assert_eq!(text, "suite  passed\nbpf         7\nnetns     120");
    }
}
