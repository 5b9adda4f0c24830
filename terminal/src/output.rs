//! Standard output.

use std::io::{self, ErrorKind, Write as _};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::table::Paint;

/// The option for the format of a command's output.
#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// Output format: a table for people, or JSON for programs.
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub format: Format,
}

/// A format of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns.
    Table,
    /// JSON.
    Json,
}

/// Writes a text to standard output. A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// When standard output cannot be written.
pub fn text(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to stdout"),
    }
}

/// Writes a value in the wanted format.
///
/// # Errors
/// When standard output cannot be written.
pub fn value<T: Serialize + ?Sized>(
    output: Output,
    value: &T,
    table: impl FnOnce(&T, Paint) -> String,
) -> Result<()> {
    match output.format {
        Format::Table => text(&table(value, Paint::for_stdout())),
        Format::Json => {
            let json = serde_json::to_string_pretty(value).context("write JSON")?;
            text(&(json + "\n"))
        }
    }
}
