//! Writing to stdout.

use std::io::{self, ErrorKind, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::args::{Format, Output};
use super::table::Paint;

/// Writes a text. A reader that has seen enough (`| head`) is no error.
pub(super) fn text(text: &str) -> Result<()> {
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
pub(super) fn value<T: Serialize + ?Sized>(
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
