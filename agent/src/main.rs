//! The binary `towpath`: the node agent and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    towpath::cli::main()
}
