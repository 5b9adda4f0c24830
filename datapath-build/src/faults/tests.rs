use std::collections::BTreeSet;

use super::{Change, all, places, tree};

#[test]
fn the_sources_have_the_code_of_each_fault_once() {
    tree::sources().unwrap();
}

#[test]
fn names_are_unique_and_every_change_waits_for_its_fault() {
    let names: BTreeSet<_> = all().map(|(_, fault)| fault.name).collect();
    assert_eq!(names.len(), all().count());
    for (_, fault) in all() {
        assert!(!fault.changes.is_empty(), "{}", fault.name);
        for change in fault.changes {
            assert!(change.with.contains(super::CONDITION), "{change:?}");
        }
    }
}

#[test]
fn code_is_found_however_it_is_wrapped() {
    let text = "é a(b,\n    c) d; a(b, c)";
    let found: Vec<_> = places(text, "a(b, c)")
        .into_iter()
        .map(|it| &text[it])
        .collect();
    assert_eq!(found, ["a(b,\n    c)", "a(b, c)"]);
}

#[test]
fn code_that_is_missing_or_there_twice_is_an_error() {
    let change = Change {
        file: "a.rs",
        code: "x > 1",
        with: "x > 1 && !FAULT",
    };
    assert_eq!(
        change.apply("if x >\n 1 {}", 7).unwrap(),
        "if x > 1 && !crate::fault::has(7) {}"
    );
    for (text, count) in [("if y {}", 0), ("x > 1; x>1", 2)] {
        let error = change.apply(text, 7).unwrap_err().to_string();
        assert!(
            error.contains(&format!("is there {count} times")),
            "{error}"
        );
    }
}
