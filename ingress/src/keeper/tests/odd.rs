//! Plugins that behave in ways the specification does not foresee.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

#[test]
fn a_child_that_holds_the_output_open_costs_no_answer() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    bed.set("ADD.forks", Some(""));
    bed.settle(Some(&one));
    let child = fs::read_to_string(bed.state("child")).unwrap();
    let child = Pid::from_raw(child.trim().parse().unwrap());
    kill(child, Signal::SIGKILL).expect("a plugin's daemon lives on");
    assert_eq!(bed.commands(), ["ADD", "CHECK"]);
    assert_eq!((bed.used(), bed.keeper.failures()), (bed.given(), 0));
}

#[test]
fn an_answer_that_a_child_completes_is_read() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    bed.set("ADD.late", Some(""));
    bed.settle(Some(&one));
    assert_eq!(bed.commands(), ["ADD", "CHECK"]);
    assert_eq!((bed.used(), bed.keeper.failures()), (bed.given(), 0));
}

#[test]
fn an_endless_output_ends_the_call_with_its_reason() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    bed.set("ADD.endless", Some(""));
    bed.rest(Some(&one));
    assert_eq!(bed.commands(), ["ADD", "DEL"]);
    let problems = bed.keeper.problems().join("; ");
    let expected = "ADD failed: it printed more than 1048576 bytes";
    assert!(problems.contains(expected), "{problems}");
    assert!(bed.used().is_empty());
}

#[test]
fn an_input_that_is_not_read_blocks_nothing() {
    let mut bed = Bed::new();
    let mut one = bed.request("node-1", "1.0.0");
    // More than a pipe holds.
    one.config =
        json!({"name": "pods", "cniVersion": "1.0.0", "x": "y".repeat(1 << 20)}).to_string();
    bed.set("ADD.deaf", Some(""));
    bed.step(Some(&one));
    let problems = bed.keeper.problems();
    assert!(problems[0].ends_with("ADD failed: deaf"), "{problems:?}");
}

#[test]
fn a_plugin_that_is_busy_takes_no_address_away() {
    // 5 is an I/O failure, 11 asks for another try; 3 is an unknown container.
    for (code, commands) in [
        ("5", &["ADD", "CHECK", "CHECK"][..]),
        ("11", &["ADD", "CHECK", "CHECK"]),
        ("3", &["ADD", "CHECK", "DEL"]),
        ("999", &["ADD", "CHECK", "DEL"]),
    ] {
        let mut bed = Bed::new();
        let one = bed.request("node-1", "1.0.0");
        bed.set("CHECK.fails", Some(code));
        bed.rest(Some(&one));
        let is_kept = commands.len() == 3 && commands[2] == "CHECK";
        assert_eq!(bed.used().len(), usize::from(is_kept), "{code}");
        let problems = bed.keeper.problems();
        assert!(
            problems[0].contains("CHECK failed: failure requested"),
            "{problems:?}"
        );
        if is_kept {
            bed.set("CHECK.fails", None);
            bed.settle(Some(&one));
            assert_eq!(bed.keeper.problems(), Vec::<String>::new(), "{code}");
        }
        assert_eq!(bed.commands(), commands, "{code}");
    }
}
