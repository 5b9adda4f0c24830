//! Measures the datapath and the agent, beside what a user would run instead: `cargo xtask bench`
//! calls it.
//!
//! A figure of one machine says little about another's, so what counts are ratios within one run.

mod agent;
mod cri;
mod live;
mod options;
mod program;
mod report;

use anyhow::Result;
use clap::Parser as _;

use options::{Group, Options};

fn main() -> Result<()> {
    let options = Options::parse();
    let mut rows = Vec::new();
    let mut ended = Ok(());
    for group in options.groups() {
        let measured = match group {
            Group::Program => program::measure(&options),
            Group::Live => live::measure(&options),
            Group::Growth => live::growth(&options),
            Group::Agent => agent::measure(&options),
            Group::Cri => cri::measure(&options),
        };
        match measured {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    // The failure of one group keeps the measurements of the groups before.
    report::show(&rows, &options)?;
    ended
}
