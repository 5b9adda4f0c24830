//! The command line.

mod args;
mod client;
mod commands;
mod render;

use std::io::{self, Write as _};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser as _;
use ec2::Ec2;
use terminal::one_line;

use crate::config::Ec2Section;

/// Connects to EC2: makes a client of the settings.
pub type Connect = fn(Ec2Section) -> Pin<Box<dyn Future<Output = Result<Arc<dyn Ec2>>>>>;

/// Exit code where no operator answers.
const UNREACHABLE: u8 = 3;

/// Runs the command that the process was started with.
#[must_use]
pub fn main(connect: Connect) -> ExitCode {
    match commands::run(args::Cli::parse(), connect) {
        Ok(code) => code,
        Err(failure) => {
            let message = one_line(&format!("{failure:#}"));
            // The exit code reports the failure even where standard error is closed.
            writeln!(io::stderr(), "towpath-operator: {message}").ok();
            match failure.downcast_ref::<client::Unreachable>() {
                Some(_) => ExitCode::from(UNREACHABLE),
                None => ExitCode::FAILURE,
            }
        }
    }
}
