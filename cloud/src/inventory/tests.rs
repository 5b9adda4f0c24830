//! Reads that lag, answers that come before them, ENIs that go.

use std::time::Duration;

use super::*;
use crate::AttachState;
use crate::test_fixture::{CLUSTER, attached, attachment, epoch, ours};

fn at(seconds: u64) -> Time {
    Time::from_millis(seconds * 1000)
}

fn read(begun: u64, scope: Scope, enis: &[&Eni]) -> Read {
    Read {
        begun: at(begun),
        scope,
        enis: enis.iter().map(|eni| (*eni).clone()).collect(),
    }
}

fn by_id(begun: u64, id: &str, enis: &[&Eni]) -> Read {
    read(begun, Scope::Ids([id.into()].into()), enis)
}

fn blocks(texts: &[&str]) -> BTreeSet<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn inventory(enis: &[&Eni]) -> Inventory {
    let mut inventory = Inventory::new(CLUSTER);
    inventory.merge(&read(0, Scope::All, enis));
    inventory
}

#[test]
fn an_answer_outlives_reads_that_do_not_show_it_for_a_minute() {
    let (id, old) = (EniId::from("eni-1"), attached("eni-1", "i-1", 1));
    let mut inventory = inventory(&[&old]);
    let wanted = blocks(&["10.0.0.16/28"]);
    inventory.expect(&id, Change::Assigned(wanted.clone()), at(10));
    for begun in [11, 40, 69] {
        inventory.merge(&read(begun, Scope::All, &[&old]));
        assert_eq!(inventory.get(&id).unwrap().blocks, wanted, "{begun}");
    }
    inventory.merge(&read(70, Scope::All, &[&old]));
    assert!(inventory.get(&id).unwrap().blocks.is_empty());
}

#[test]
fn an_agreeing_read_ends_an_expectation_only_if_it_began_late_enough() {
    let (id, old) = (EniId::from("eni-1"), attached("eni-1", "i-1", 1));
    let new = Eni {
        blocks: blocks(&["10.0.0.16/28"]),
        ..old.clone()
    };
    let mut inventory = inventory(&[&old]);
    inventory.expect(&id, Change::Assigned(new.blocks.clone()), at(10));
    inventory.merge(&read(39, Scope::All, &[&new]));
    inventory.merge(&read(39, Scope::All, &[&old]));
    assert_eq!(inventory.get(&id).unwrap().blocks, new.blocks);
    inventory.merge(&read(40, Scope::All, &[&new]));
    inventory.merge(&read(41, Scope::All, &[&old]));
    let shown = inventory.get(&id).unwrap();
    assert!(shown.blocks.is_empty(), "a foreign change is believed");
}

#[test]
fn an_older_read_that_comes_late_says_nothing() {
    let old = attached("eni-1", "i-1", 1);
    let new = Eni {
        groups: ["sg-2".into()].into(),
        ..old.clone()
    };
    let mut inventory = inventory(&[&old]);
    inventory.merge(&read(9, Scope::All, &[&new]));
    inventory.merge(&read(8, Scope::All, &[&old]));
    assert_eq!(inventory.get(&"eni-1".into()), Some(&new));
    inventory.merge(&read(7, Scope::All, &[]));
    assert_eq!(inventory.due(at(100), |_| true), Due::default());
}

#[test]
fn an_eni_that_reads_lack_is_withdrawn_only_after_half_a_minute_and_by_id() {
    let eni = attached("eni-1", "i-1", 1);
    let mut inventory = inventory(&[&eni]);
    let nothing = Merged::default();
    assert_eq!(inventory.merge(&read(10, Scope::All, &[])), nothing);
    assert_eq!(inventory.due(at(10), |_| true).ids, ["eni-1".into()].into());
    assert_eq!(inventory.merge(&by_id(11, "eni-1", &[])), nothing);
    assert_eq!(inventory.due(at(39), |_| true), Due::default());
    assert_eq!(inventory.merge(&read(39, Scope::All, &[])), nothing);
    assert_eq!(
        inventory.due(at(40), |_| true).instances,
        ["i-1".into()].into()
    );
    assert_eq!(inventory.merge(&read(40, Scope::All, &[])), nothing);
    assert_eq!(inventory.due(at(40), |_| true).ids, ["eni-1".into()].into());
    assert!(inventory.get(&eni.id).is_some());
    let merged = inventory.merge(&by_id(41, "eni-1", &[]));
    assert_eq!(merged.withdrawn, std::slice::from_ref(&eni.id));
    assert_eq!(merged.changed, ["i-1".into()].into());
    assert_eq!(inventory.of_instance(&"i-1".into()).count(), 0);
}

#[test]
fn one_read_that_shows_the_eni_takes_all_doubt_away() {
    let eni = attached("eni-1", "i-1", 1);
    let mut inventory = inventory(&[&eni]);
    inventory.merge(&read(10, Scope::All, &[]));
    inventory.merge(&read(50, Scope::All, &[]));
    inventory.merge(&read(51, Scope::All, &[&eni]));
    assert_eq!(inventory.merge(&by_id(52, "eni-1", &[])), Merged::default());
    assert!(inventory.get(&eni.id).is_some());
}

#[test]
fn a_read_by_id_outranks_filtered_reads_for_half_a_minute() {
    let (loose, attached) = (ours("eni-1", "i-1"), attached("eni-1", "i-1", 1));
    let mut inventory = inventory(&[&loose]);
    inventory.merge(&by_id(10, "eni-1", &[&attached]));
    for begun in [11, 39] {
        inventory.merge(&read(begun, Scope::All, &[&loose]));
        assert!(inventory.get(&loose.id).unwrap().is_attached(), "{begun}");
    }
    inventory.merge(&read(39, Scope::All, &[]));
    assert_eq!(inventory.due(at(39), |_| true), Due::default());
    inventory.merge(&read(40, Scope::All, &[&loose]));
    assert!(inventory.get(&loose.id).unwrap().is_loose());
}

#[test]
fn a_read_of_another_scope_does_not_miss_the_eni() {
    let eni = attached("eni-1", "i-1", 1);
    let mut inventory = inventory(&[&eni]);
    for begun in [10, 50, 90] {
        inventory.merge(&read(begun, Scope::Loose, &[]));
        inventory.merge(&read(begun, Scope::Instances(["i-2".into()].into()), &[]));
    }
    assert_eq!(inventory.due(at(100), |_| true), Due::default());
}

#[test]
fn a_created_eni_is_not_missed_for_a_minute() {
    let eni = ours("eni-1", "i-1");
    let mut inventory = inventory(&[]);
    inventory.created(eni.clone(), at(10));
    assert_eq!(inventory.of_instance(&"i-1".into()).count(), 1);
    for begun in [11, 50, 69] {
        inventory.merge(&by_id(begun, "eni-1", &[]));
    }
    assert!(inventory.get(&eni.id).is_some());
    for begun in [70, 100, 101] {
        inventory.merge(&by_id(begun, "eni-1", &[]));
    }
    assert_eq!(inventory.get(&eni.id), None);
}

#[test]
fn a_created_eni_keeps_its_blocks_although_a_read_has_only_the_eni() {
    let created = Eni {
        blocks: blocks(&["10.0.0.16/28"]),
        ..ours("eni-1", "i-1")
    };
    let mut inventory = inventory(&[]);
    inventory.created(created.clone(), at(10));
    inventory.merge(&by_id(12, "eni-1", &[&ours("eni-1", "i-1")]));
    assert_eq!(inventory.get(&created.id), Some(&created));
    assert_eq!(inventory.settled_blocks(&created.id).count(), 1);
}

#[test]
fn a_deleted_eni_stays_away_although_reads_still_show_it() {
    let eni = ours("eni-1", "i-1");
    let mut inventory = inventory(&[&eni]);
    inventory.expect(&eni.id, Change::Deleted, at(10));
    let merged = inventory.merge(&read(30, Scope::All, &[&eni]));
    assert_eq!(merged, Merged::default());
    assert_eq!(inventory.enis().count(), 0);
    assert_eq!(inventory.merge(&read(40, Scope::All, &[])).withdrawn, []);
    let merged = inventory.merge(&read(41, Scope::All, &[&eni]));
    assert_eq!(merged.changed, ["i-1".into()].into());
    assert_eq!(inventory.enis().count(), 1, "a read shows it long after");
}

#[test]
fn an_attachment_by_answer_moves_the_eni_and_a_detachment_by_a_read_loosens_it() {
    let eni = ours("eni-1", "i-1");
    let mut inventory = inventory(&[&eni]);
    inventory.expect(&eni.id, Change::Attached(attachment("i-1", 1)), at(1));
    assert!(inventory.get(&eni.id).unwrap().is_attached());
    let merged = inventory.merge(&by_id(61, "eni-1", &[&eni]));
    assert!(inventory.get(&eni.id).unwrap().is_loose());
    assert_eq!(merged.changed, ["i-1".into()].into());
}

#[test]
fn blocks_that_no_answer_named_need_two_reads() {
    let id = EniId::from("eni-1");
    let eni = Eni {
        blocks: blocks(&["10.0.0.16/28"]),
        ..attached("eni-1", "i-1", 1)
    };
    let mut inventory = inventory(&[&eni]);
    let answered = blocks(&["10.0.0.32/28"]);
    inventory.expect(&id, Change::Assigned(answered.clone()), at(1));
    let settled = |inventory: &Inventory| inventory.settled_blocks(&id).collect::<BTreeSet<_>>();
    assert_eq!(settled(&inventory), answered);
    inventory.expect(&id, Change::Marked, at(25));
    assert_eq!(settled(&inventory), answered, "an answer is no sight of it");
    inventory.merge(&read(19, Scope::All, &[&eni]));
    assert_eq!(settled(&inventory), answered);
    assert_eq!(
        inventory.due(at(20), |_| true).instances,
        ["i-1".into()].into()
    );
    inventory.merge(&read(20, Scope::All, &[&eni]));
    let both = blocks(&["10.0.0.16/28", "10.0.0.32/28"]);
    assert_eq!(settled(&inventory), both);
}

#[test]
fn the_inventory_dates_its_reads() {
    let mut inventory = Inventory::new(CLUSTER);
    let (one, two) = (InstanceId::from("i-1"), InstanceId::from("i-2"));
    assert_eq!(
        (inventory.loose_read(), inventory.read_of(&one)),
        (None, None)
    );
    inventory.merge(&read(1, Scope::Instances([one.clone()].into()), &[]));
    inventory.merge(&read(2, Scope::Loose, &[]));
    assert_eq!(inventory.read_of(&one), Some(at(1)));
    assert_eq!(inventory.read_of(&two), None);
    assert_eq!(inventory.loose_read(), Some(at(2)));
    inventory.merge(&read(3, Scope::All, &[]));
    assert_eq!(inventory.read_of(&one), Some(at(3)));
    let gap = inventory.loose_read().map(|it| it.since(at(2)));
    assert_eq!(gap, Some(Duration::from_secs(1)));
    inventory.merge(&read(4, Scope::Instances([one.clone()].into()), &[]));
    inventory.forget(&one);
    assert_eq!(inventory.read_of(&one), Some(at(3)));
}

#[test]
fn a_block_that_was_taken_is_gone_only_by_a_read_that_is_late_enough() {
    let (id, instance) = (EniId::from("eni-1"), InstanceId::from("i-1"));
    let block = "10.0.0.16/28".parse().unwrap();
    let old = Eni {
        blocks: [block].into(),
        ..attached("eni-1", "i-1", 1)
    };
    let new = attached("eni-1", "i-1", 1);
    let mut inventory = inventory(&[&old]);
    assert!(!inventory.lacks(&instance, &block));
    inventory.expect(&id, Change::Unassigned([block].into()), at(10));
    assert!(inventory.get(&id).unwrap().blocks.is_empty());
    inventory.merge(&read(39, Scope::All, &[&new]));
    assert!(
        !inventory.lacks(&instance, &block),
        "a later read can be older"
    );
    inventory.merge(&read(39, Scope::All, &[&old]));
    assert!(inventory.get(&id).unwrap().blocks.is_empty());
    inventory.merge(&read(40, Scope::All, &[&new]));
    assert!(inventory.lacks(&instance, &block));
}

#[test]
fn an_eni_that_was_detached_goes_and_is_loose_once_a_read_shows_it() {
    let (id, old) = (EniId::from("eni-1"), attached("eni-1", "i-1", 1));
    let mut inventory = inventory(&[&old]);
    inventory.expect(&id, Change::Detached, at(10));
    assert!(!inventory.get(&id).unwrap().is_attached());
    inventory.merge(&read(20, Scope::All, &[&old]));
    assert!(!inventory.get(&id).unwrap().is_attached());
    inventory.merge(&read(41, Scope::All, &[&ours("eni-1", "i-1")]));
    assert!(inventory.get(&id).unwrap().is_loose());
}

#[test]
fn what_others_do_with_their_enis_brings_no_reads() {
    let mut moving = attached("eni-1", "i-1", 1);
    if let Some(attachment) = &mut moving.attachment {
        attachment.state = AttachState::Attaching;
    }
    let seen_once = Eni {
        blocks: blocks(&["10.0.0.16/28"]),
        ..attached("eni-2", "i-1", 2)
    };
    let inventory = inventory(&[&moving, &seen_once]);
    let due = inventory.due(at(20), |_| true);
    assert_eq!(due.ids, ["eni-1".into()].into());
    assert_eq!(due.instances, ["i-1".into()].into());
    assert_eq!(inventory.due(at(20), |_| false), Due::default());
}

#[test]
fn enis_of_no_instance_and_no_cluster_are_of_no_concern_before_they_are_known() {
    let of_another = Eni {
        tags: tags::of_creation("another", &"i-9".into(), epoch(), &tags::Tags::new()),
        ..ours("eni-3", "i-9")
    };
    let unreadable = Eni {
        tags: [(tags::CLUSTER.to_owned(), CLUSTER.to_owned())].into(),
        ..of_another.clone()
    };
    let mut inventory = inventory(&[]);
    assert!(inventory.concerns(&attached("eni-1", "i-1", 1)));
    assert!(inventory.concerns(&ours("eni-2", "i-1")));
    assert!(inventory.concerns(&unreadable));
    assert!(!inventory.concerns(&of_another));
    inventory.merge(&by_id(1, "eni-3", &[&of_another]));
    assert!(inventory.concerns(&of_another));
}

#[test]
fn a_block_that_ec2_gives_again_is_not_hidden_by_the_answer_that_it_was_taken() {
    let eni = Eni {
        blocks: blocks(&["10.0.0.17/32"]),
        ..attached("eni-1", "i-1", 1)
    };
    let mut inventory = inventory(&[&eni]);
    let block = eni.blocks.clone();
    inventory.expect(&eni.id, Change::Unassigned(block.clone()), at(10));
    assert!(!inventory.was_given(&"i-1".into(), &"10.0.0.17/32".parse().unwrap()));
    inventory.expect(&eni.id, Change::Assigned(block.clone()), at(11));
    assert!(inventory.was_given(&"i-1".into(), &"10.0.0.17/32".parse().unwrap()));
    inventory.merge(&read(41, Scope::All, &[&eni]));
    assert_eq!(inventory.get(&eni.id).unwrap().blocks, block);
}

#[test]
fn a_late_read_by_id_decides_against_an_answer() {
    let eni = Eni {
        blocks: blocks(&["10.0.0.17/32"]),
        ..attached("eni-1", "i-1", 1)
    };
    let mut inventory = inventory(&[&eni]);
    let block = eni.blocks.clone();
    inventory.expect(&eni.id, Change::Unassigned(block.clone()), at(10));
    for begun in [39, 40] {
        inventory.merge(&read(begun, Scope::All, &[&eni]));
        assert!(inventory.get(&eni.id).unwrap().blocks.is_empty(), "{begun}");
    }
    inventory.merge(&by_id(39, "eni-1", &[&eni]));
    assert!(inventory.get(&eni.id).unwrap().blocks.is_empty());
    // Another call without an answer may have assigned it again.
    inventory.merge(&by_id(40, "eni-1", &[&eni]));
    assert_eq!(inventory.get(&eni.id).unwrap().blocks, block);
}

/// The node of the instance has marks of blocks that were taken, or waits to show new ones.
#[test]
fn a_listing_that_settles_an_answer_or_a_block_changes_the_instance() {
    let new = attached("eni-1", "i-1", 1);
    let old = Eni {
        blocks: blocks(&["10.0.0.17/32"]),
        ..new.clone()
    };
    let one = BTreeSet::from(["i-1".into()]);
    let mut taken = inventory(&[&old]);
    taken.expect(&old.id, Change::Unassigned(old.blocks.clone()), at(10));
    let early = taken.merge(&read(39, Scope::All, &[&new]));
    assert_eq!(early.changed, BTreeSet::new());
    assert_eq!(taken.merge(&read(40, Scope::All, &[&new])).changed, one);
    let again = taken.merge(&read(41, Scope::All, &[&new]));
    assert_eq!(again.changed, BTreeSet::new());
    let mut given = inventory(&[&new]);
    assert_eq!(given.merge(&read(1, Scope::All, &[&old])).changed, one);
    let early = given.merge(&read(20, Scope::All, &[&old]));
    assert_eq!(early.changed, BTreeSet::new());
    assert_eq!(given.merge(&read(21, Scope::All, &[&old])).changed, one);
    let again = given.merge(&read(22, Scope::All, &[&old]));
    assert_eq!(again.changed, BTreeSet::new());
}
