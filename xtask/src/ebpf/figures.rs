//! A checked-in document with one table of measured figures, and the comparison of new measurements
//! with it.

use std::array;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};

use crate::console;

/// A row: its names, and its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row<const NAMES: usize, const FIGURES: usize> {
    pub(super) names: [String; NAMES],
    pub(super) figures: [u64; FIGURES],
}

/// A document: its file, the command that writes it, and the names of its table's columns.
#[derive(Debug)]
pub(super) struct Sheet<const NAMES: usize, const FIGURES: usize> {
    /// Its path in the workspace.
    pub(super) file: &'static str,
    pub(super) command: &'static str,
    /// Text before the table.
    pub(super) preface: &'static str,
    pub(super) names: [&'static str; NAMES],
    pub(super) figures: [&'static str; FIGURES],
}

impl<const NAMES: usize, const FIGURES: usize> Sheet<NAMES, FIGURES> {
    /// The checked-in rows.
    pub(super) fn read(&self) -> Result<Vec<Row<NAMES, FIGURES>>> {
        let (path, command) = (self.path(), self.command);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}; {command} writes it", path.display()))?;
        self.parse(&text)
            .with_context(|| format!("{}", path.display()))
    }

    /// Writes rows to the checked-in file.
    pub(super) fn write(&self, rows: &[Row<NAMES, FIGURES>]) -> Result<()> {
        let path = self.path();
        fs::write(&path, self.markdown(rows))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Rows for people at a terminal.
    pub(super) fn table(&self, rows: &[Row<NAMES, FIGURES>]) -> String {
        let rows: Vec<_> = rows.iter().map(Row::cells).collect();
        console::table(&self.header(), &rows)
    }

    /// The document with these rows.
    pub(super) fn markdown(&self, rows: &[Row<NAMES, FIGURES>]) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let names = self.header().into_iter().map(str::to_owned);
        let names: Vec<_> = names.collect();
        let rules: Vec<_> = [["---"; NAMES].as_slice(), &["--:"; FIGURES]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect();
        let mut text = self.preface.to_owned() + &line(&names) + &line(&rules);
        for row in rows {
            text += &line(&row.cells());
        }
        text
    }

    /// The rows of a document.
    pub(super) fn parse(&self, text: &str) -> Result<Vec<Row<NAMES, FIGURES>>> {
        let begin = format!("| {} |", self.header().join(" | "));
        let lines = text.lines().skip_while(|line| *line != begin).skip(2);
        lines.map(Row::parse).collect()
    }

    fn header(&self) -> Vec<&'static str> {
        [self.names.as_slice(), &self.figures].concat()
    }

    fn path(&self) -> PathBuf {
        datapath_build::workspace_root().join(self.file)
    }
}

impl<const NAMES: usize, const FIGURES: usize> Row<NAMES, FIGURES> {
    fn cells(&self) -> Vec<String> {
        let figures = self.figures.iter().map(u64::to_string);
        self.names.iter().cloned().chain(figures).collect()
    }

    fn parse(line: &str) -> Result<Self> {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let Some((names, figures)) = cells.split_at_checked(NAMES) else {
            bail!("no row of figures: {line}");
        };
        ensure!(
            figures.len() == FIGURES,
            "not as many figures as columns: {line}"
        );
        let mut parsed = [0; FIGURES];
        for (figure, cell) in parsed.iter_mut().zip(figures) {
            *figure = cell
                .parse()
                .with_context(|| format!("no figures: {line}"))?;
        }
        Ok(Self {
            names: array::from_fn(|column| names[column].to_owned()),
            figures: parsed,
        })
    }
}

/// Allowed difference of a figure from its former value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    /// Difference in percent.
    pub(super) percent: u64,
    /// True if it may be smaller by any amount.
    pub(super) may_shrink: bool,
}

impl Tolerance {
    /// Differences beyond the tolerance, in words.
    pub(super) fn differences<const FIGURES: usize>(
        self,
        columns: [&str; FIGURES],
        before: [u64; FIGURES],
        now: [u64; FIGURES],
    ) -> Vec<String> {
        let off = |before: u64, now: u64| {
            let is_more = now * 100 > before * (100 + self.percent);
            let is_less = now * 100 < before * (100 - self.percent);
            is_more || is_less && !self.may_shrink
        };
        let figures = columns.into_iter().zip(before.into_iter().zip(now));
        figures
            .filter(|(_, (before, now))| off(*before, *now))
            .map(|(column, (before, now))| format!("{column} was {before}, is {now}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, Sheet, Tolerance};

    const SHEET: Sheet<2, 1> = Sheet {
        file: "docs/none.md",
        command: "none",
        preface: "# Rows\n\n",
        names: ["kernel", "program"],
        figures: ["verified"],
    };

    fn row(program: &str, figure: u64) -> Row<2, 1> {
        Row {
            names: ["6.18".to_owned(), program.to_owned()],
            figures: [figure],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let rows = vec![row("reaper", 500), row("to_network", 2000)];
        let text = SHEET.markdown(&rows);
        assert_eq!(
            text,
            "# Rows\n\n| kernel | program | verified |\n| --- | --- | --: |\n\
             | 6.18 | reaper | 500 |\n| 6.18 | to_network | 2000 |\n"
        );
        assert_eq!(SHEET.parse(&text).unwrap(), rows);
        for (broken, why) in [
            ("| 6.18 | reaper | 1 | 2 |", "not as many figures"),
            ("| 6.18 |", "no row of figures"),
            ("| 6.18 | reaper | many |", "no figures"),
        ] {
            let error = SHEET.parse(&(text.clone() + broken)).unwrap_err();
            assert!(error.to_string().starts_with(why), "{error}");
        }
    }

    #[test]
    fn figures_may_be_off_by_so_much_and_no_more() {
        let of = |may_shrink, now| {
            let tolerance = Tolerance {
                percent: 10,
                may_shrink,
            };
            tolerance.differences(["verified"], [500], [now])
        };
        for fine in [450, 500, 550] {
            assert_eq!(of(false, fine), [] as [String; 0]);
        }
        assert_eq!(of(false, 551), ["verified was 500, is 551"]);
        assert_eq!(of(false, 449), ["verified was 500, is 449"]);
        assert_eq!(of(true, 1), [] as [String; 0]);
    }
}
