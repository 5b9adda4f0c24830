//! The commands about the configuration.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde_json::json;
use terminal::Output;

use super::args::ConfigCommand;
use super::failure::Failure;
use super::{commands, render};
use config::Config;

/// Runs a command. `file` is the configuration that `--config` names.
pub(super) fn run(command: ConfigCommand, file: Option<&Path>) -> Result<ExitCode, Failure> {
    match command {
        ConfigCommand::Check { file, output } => check(&file, output)?,
        ConfigCommand::Show(output) => {
            let rows = load(file)?.explain();
            terminal::value(output, rows.as_slice(), render::config)?;
        }
        ConfigCommand::Example => terminal::text(&config::example())?,
        ConfigCommand::Schema => {
            let schema = serde_json::to_string_pretty(&config::schema()).context("write JSON")?;
            terminal::text(&(schema + "\n"))?;
        }
        ConfigCommand::Reference => terminal::text(&config::reference())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the configuration of an agent or of a command.
pub(super) fn load(file: Option<&Path>) -> Result<Config> {
    Ok(Config::load(file)?)
}

/// Checks a configuration as the agent does before it starts.
fn check(file: &Path, output: Output) -> Result<(), Failure> {
    let checked = load(Some(file));
    let checked = checked.and_then(|config| commands::runtime()?.block_on(crate::check(&config)));
    let checked = match checked {
        Ok(checked) => checked,
        Err(error) => {
            let message = format!("{error:#}");
            let bad = json!({"file": file, "good": false, "error": message});
            // The message itself goes to stderr.
            terminal::value(output, &bad, |_, _| String::new())?;
            return Err(error.into());
        }
    };
    let warnings = [checked.warnings, checked.files].concat();
    let table = |_: &_, _| {
        let lines = warnings.iter().map(|text| format!("warning: {text}\n"));
        let lines: String = lines.collect();
        format!("{lines}{} is good\n", file.display())
    };
    let good = json!({"file": file, "good": true, "warnings": warnings});
    terminal::value(output, &good, table)?;
    Ok(())
}
