use clap::CommandFactory as _;

use super::*;

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_explains_itself() {
    fn check(command: &clap::Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        assert!(command.get_about().is_some(), "{path}");
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some(), "{path}: {}", arg.get_id());
        }
        for sub in command.get_subcommands() {
            check(sub, &path);
        }
    }
    check(&Cli::command(), "");
}
