//! The command line.

mod args;
mod commands;
mod failure;
mod output;
mod render;
mod table;

use std::process::ExitCode;

use clap::Parser as _;

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    match commands::run(args::Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("towpath: {}", table::one_line(&failure.to_string()));
            failure.exit_code()
        }
    }
}
