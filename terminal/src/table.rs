//! Text for terminals: aligned columns without borders, and colour where it helps.

use std::env;
use std::io::{self, IsTerminal as _};

use comfy_table::{ContentArrangement, Table as Grid, presets};

/// The tone of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Nothing special.
    Plain,
    /// A heading.
    Heading,
    /// A good state that is shown.
    Good,
    /// A state that needs attention.
    Warning,
    /// Broken.
    Bad,
}

/// Colour, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint(pub bool);

impl Paint {
    /// Colour on a terminal, unless `NO_COLOR` is set (<https://no-color.org>) or the terminal
    /// has none.
    #[must_use]
    pub fn for_stdout() -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self(io::stdout().is_terminal() && !refused && !dumb)
    }

    /// The text in its tone.
    #[must_use]
    pub fn text(self, tone: Tone, text: &str) -> String {
        // ECMA-48 section 8.3.117 (SGR).
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Heading => "1",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
        };
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// A table that grows row by row.
#[derive(Debug)]
pub struct Table {
    grid: Grid,
    tones: Vec<Tone>,
}

impl Table {
    /// A table with these columns.
    #[must_use]
    pub fn new<const N: usize>(header: [&str; N]) -> Self {
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(header);
        for column in grid.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Self {
            grid,
            tones: vec![Tone::Heading],
        }
    }

    /// Adds a row. Empty cells show as `-`; whatever a cell holds, it takes one line.
    pub fn row<const N: usize>(&mut self, tone: Tone, cells: [String; N]) {
        let cells = cells.map(|cell| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                one_line(&cell)
            }
        });
        self.grid.add_row(cells);
        self.tones.push(tone);
    }

    /// The table as text, one line a row.
    #[must_use]
    pub fn render(&self, paint: Paint) -> String {
        let lines = self.grid.lines();
        lines
            .zip(&self.tones)
            .map(|(line, tone)| paint.text(*tone, line.trim_end()) + "\n")
            .collect()
    }
}

/// The text without line breaks and without control characters, which could come from another
/// program's name or a file and would be obeyed by the terminal.
#[must_use]
pub fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["NAME", "STATE", "REASON"]);
        table.row(Tone::Plain, ["a".into(), "ready".into(), String::new()]);
        let reason = "no device has\nits MAC".into();
        table.row(Tone::Bad, ["longer".into(), "not-ready".into(), reason]);
        table
    }

    #[test]
    fn columns_align() {
        assert_eq!(
            table().render(Paint(false)),
            "NAME    STATE      REASON\n\
             a       ready      -\n\
             longer  not-ready  no device has its MAC\n"
        );
    }

    #[test]
    fn colour_changes_no_column() {
        assert_eq!(
            table().render(Paint(true)),
            "\x1b[1mNAME    STATE      REASON\x1b[0m\n\
             a       ready      -\n\
             \x1b[31mlonger  not-ready  no device has its MAC\x1b[0m\n"
        );
    }

    #[test]
    fn nothing_reaches_the_terminal_as_a_command() {
        assert_eq!(one_line("a\x1b[2Jb\tc"), "a [2Jb c");
    }
}
