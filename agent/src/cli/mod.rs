//! The command line.

mod args;
mod cni;
mod commands;
mod duration;
mod failure;
mod render;
mod settings;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use terminal::one_line;

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    match commands::run(args::Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            let message = one_line(&failure.to_string());
            // Without a reader of stderr, the exit code still reports the failure.
            writeln!(io::stderr(), "towpath: {message}").ok();
            failure.exit_code()
        }
    }
}
