//! Folders of plugins that the configuration names no longer.

use super::*;

/// Another folder with the plugin.
fn other(bed: &Bed) -> PathBuf {
    let other = bed.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    symlink(PLUGIN, other.join("fake-ipam")).unwrap();
    other
}

/// The calls of the plugin in another folder.
fn calls_in(folder: &Path) -> Vec<String> {
    let calls = fs::read_to_string(folder.join("fake-ipam.d/calls")).unwrap_or_default();
    calls.lines().map(str::to_owned).collect()
}

#[test]
fn a_folder_that_is_not_named_any_more_gets_its_del_before_the_next_add() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    let other = other(&bed);
    bed.settle(Some(&one));
    let both = [other.clone(), bed.folder.path().to_owned()];
    let both = Bed::request_in("node-1", "1.0.0", &both);
    bed.settle(Some(&both));
    assert_eq!(
        bed.commands(),
        ["ADD", "CHECK"],
        "the folder is still named"
    );
    let moved = Bed::request_in("node-1", "1.0.0", std::slice::from_ref(&other));
    bed.set("DEL.fails", Some(""));
    bed.rest(Some(&moved));
    assert_eq!(bed.commands(), ["ADD", "CHECK", "DEL"]);
    assert!(calls_in(&other).is_empty(), "DEL is owed first");
    bed.set("DEL.fails", None);
    bed.settle(Some(&moved));
    let calls = bed.calls();
    let [add, .., del] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(add.strip_prefix("ADD"), del.strip_prefix("DEL"));
    assert!(bed.given().is_empty());
    let calls = calls_in(&other);
    assert!(calls[0].starts_with("ADD ") && calls[1].starts_with("CHECK "));
    assert_eq!((calls.len(), bed.used().len()), (2, 1));
}

#[test]
fn a_program_that_is_gone_is_replaced_by_that_of_its_name_for_del() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    bed.settle(Some(&one));
    let other = other(&bed);
    fs::rename(
        bed.folder.path().join("fake-ipam.d"),
        other.join("fake-ipam.d"),
    )
    .unwrap();
    fs::remove_file(&one.plugin).unwrap();
    let moved = Bed::request_in("node-1", "1.0.0", std::slice::from_ref(&other));
    bed.settle(Some(&moved));
    let calls = calls_in(&other);
    let commands: Vec<_> = calls
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(commands, ["ADD", "CHECK", "DEL", "ADD", "CHECK"]);
    assert_eq!((bed.used().len(), bed.keeper.problems()), (1, Vec::new()));
}

#[test]
fn a_program_that_was_never_there_does_not_block_the_one_of_another_folder() {
    let mut bed = Bed::new();
    let missing = Bed::request_in("node-1", "1.0.0", &[bed.folder.path().join("missing")]);
    bed.rest(Some(&missing));
    assert!(!bed.keeper.problems().is_empty());
    let one = bed.request("node-1", "1.0.0");
    bed.settle(Some(&one));
    assert_eq!(
        (bed.used(), bed.keeper.problems()),
        (bed.given(), Vec::new())
    );
}

#[test]
fn an_add_that_is_not_started_owes_no_del() {
    let mut bed = Bed::new();
    let missing = Bed::request_in("node-1", "1.0.0", &[bed.folder.path().join("missing")]);
    bed.rest(Some(&missing));
    let problems = bed.keeper.problems().join("; ");
    assert!(
        problems.contains("ADD failed: it cannot be run"),
        "{problems}"
    );
    assert!(!problems.contains("DEL"), "{problems}");
    bed.settle(None);
    assert!(bed.keeper.record().entries.is_empty());
}
