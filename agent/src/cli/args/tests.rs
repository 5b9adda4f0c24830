use clap::CommandFactory as _;

use super::*;

const REFERENCE: &str = include_str!("../../../../docs/reference/cli.md");

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

#[test]
fn the_reference_has_every_command_and_argument_with_its_help() {
    let mut faults = Vec::new();
    let mut cli = Cli::command();
    cli.build();
    compare(&cli, "towpath", &mut faults);
    assert!(faults.is_empty(), "docs/reference/cli.md: {faults:#?}");
}

/// Notes the texts of a command, and of those below it, that its section of the reference lacks.
fn compare(command: &clap::Command, path: &str, faults: &mut Vec<String>) {
    let subcommands = command.get_subcommands();
    for sub in subcommands.filter(|sub| sub.get_name() != "help") {
        compare(sub, &format!("{path} {}", sub.get_name()), faults);
    }
    let is_leaf = command.get_subcommands().next().is_none();
    if !is_leaf && command.is_subcommand_required_set() {
        return;
    }
    let heading = format!("\n## {path}\n");
    let section = REFERENCE.split_once(&heading).map(|(_, rest)| rest);
    let section = section.and_then(|rest| rest.split("\n## ").next());
    let Some(section) = section.map(words) else {
        faults.push(format!("{path}: no section"));
        return;
    };
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let mut texts: Vec<String> = about.split("\n\n").map(words).collect();
    let own = command.get_arguments().filter(|arg| !is_common(arg));
    texts.extend(own.map(|arg| {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        format!("{}` | {}", name(arg), words(&help))
    }));
    let lacking = texts.into_iter().filter(|text| !section.contains(text));
    faults.extend(lacking.map(|text| format!("{path}: {text}")));
}

/// An argument of many commands, which the reference describes once.
fn is_common(arg: &clap::Arg) -> bool {
    arg.is_global_set() || matches!(arg.get_long(), Some("output" | "help" | "version"))
}

/// The end of an argument's name in the reference.
fn name(arg: &clap::Arg) -> String {
    let shown = arg.to_string().replace('|', "\\|");
    shown.trim_end_matches("...").to_owned()
}

/// A text with single spaces in place of line breaks.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
