//! Calls that are lost, late or doubled, and operators that die between any two of them.

use std::time::Duration;

use cloud::Action;

use super::bed::{Bed, Fault, node};

/// A bed in which two nodes bring up two ENIs each, by all kinds of calls.
fn bed(seed: u64) -> Bed {
    let mut bed = Bed::new();
    bed.random = super::bed::Random::new(seed);
    bed.ec2.add_subnet("other", 2);
    bed.lag = 30;
    for name in ["one", "two"] {
        let mut node = node(name, "test.large");
        node.rules.first_index = 1;
        bed.add(name, node);
        bed.set_requested(name, 6, 0);
    }
    bed
}

/// Runs of a test; ten times as many in its long form.
fn seeds(count: u64) -> u64 {
    let is_long = std::env::var_os("TOWPATH_FULL").is_some();
    if is_long { count * 10 } else { count }
}

fn assert_converged(bed: &mut Bed, what: &str) {
    bed.faults.chance = 0;
    bed.faults.planned = None;
    bed.run(900);
    for name in ["one", "two"] {
        let (has, wants) = (bed.available(name), 6);
        assert!(
            has >= wants,
            "{what}: {name} has {has} of {wants} addresses"
        );
        let enis = bed.enis(name);
        assert!(enis >= 3, "{what}: {name} has {enis} ENIs");
        let next = bed.next(name);
        assert_eq!(next.step, None, "{what}: {name} never rests");
        assert_eq!(next.conditions, [], "{what}: {name}");
    }
    assert!(bed.loose().is_empty(), "{what}: leaked {:?}", bed.loose());
    bed.assert_published_blocks_are_true();
    let unmarked = bed.ec2.enis.values().filter(|eni| {
        eni.attachment
            .as_ref()
            .is_some_and(|it| !it.delete_on_termination)
    });
    assert_eq!(unmarked.count(), 0, "{what}: unmarked");
    let calls = bed.ec2.calls.len();
    bed.run(300);
    assert_eq!(bed.ec2.calls.len(), calls, "{what}: an idle operator calls");
}

#[test]
fn without_faults_a_node_takes_a_handful_of_calls() {
    let mut bed = bed(1);
    assert_converged(&mut bed, "no fault");
    assert_eq!(
        bed.ec2.calls.len(),
        2 * 2 * 3,
        "create, attach, mark: {:?}",
        bed.ec2.calls
    );
}

#[test]
fn every_fault_at_every_call_heals() {
    for fault in Fault::ALL {
        for number in 0..14 {
            for seed in 0..seeds(1) {
                let mut bed = bed(seed);
                bed.faults.planned = Some((number, fault));
                bed.run(120);
                assert_converged(
                    &mut bed,
                    &format!("{fault:?} at call {number}, seed {seed}"),
                );
            }
        }
    }
}

#[test]
fn a_new_operator_finds_the_eni_that_a_dead_one_created_long_ago() {
    let mut bed = bed(1);
    bed.lag = 0;
    bed.nodes.remove("two");
    bed.faults.planned = Some((0, Fault::KilledAfter));
    bed.run(1);
    // The token is another one by now.
    bed.ec2.advance(bed.ec2.now.after(Duration::from_mins(15)));
    bed.restart();
    bed.run(4);
    assert_eq!(
        bed.count(Action::Create),
        1 + 1,
        "the second ENI of the node"
    );
    assert!(bed.loose().is_empty());
}

#[test]
fn a_call_without_an_answer_is_not_made_twice() {
    for (number, action) in [
        (0, Action::Create),
        (1, Action::Attach),
        (3, Action::Assign),
    ] {
        for seed in 0..seeds(10) {
            let mut node = node("one", "test.large");
            node.rules.first_index = 1;
            node.marks.pre = 2;
            let mut bed = Bed::with(node);
            bed.random = super::bed::Random::new(seed);
            bed.lag = 30;
            bed.faults.planned = Some((number, Fault::AnswerLost));
            bed.run(5);
            bed.set_used(2);
            bed.run(100);
            assert_eq!(bed.available("one"), 4, "{action}, seed {seed}");
            let calls = bed.count(action);
            // The token makes a repeated creation harmless.
            let most = 1 + usize::from(action == Action::Create);
            assert!(calls <= most, "{action}: {calls} calls, seed {seed}");
        }
    }
}

#[test]
fn the_token_of_a_deleted_eni_is_not_used_again() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.ec2.instances.values_mut().next().unwrap().is_running = false;
    bed.run(5);
    bed.one().marks.pre = 0;
    bed.run(70);
    assert_eq!((bed.count(Action::Delete), bed.loose().len()), (1, 0));
    bed.one().marks.pre = 8;
    bed.run(70);
    assert_eq!((bed.count(Action::Create), bed.loose().len()), (2, 1));
}

#[test]
fn many_faults_in_a_row_heal() {
    for seed in 0..seeds(20) {
        let mut bed = bed(seed);
        bed.faults.chance = 30;
        for round in 0..60 {
            bed.run(10);
            bed.assert_published_blocks_are_true();
            for name in ["one", "two"] {
                let wanted = 3 + u32::try_from((seed + round) % 4).unwrap();
                bed.set_requested(name, wanted, 0);
            }
        }
        for name in ["one", "two"] {
            bed.set_requested(name, 6, 0);
        }
        assert_converged(&mut bed, &format!("seed {seed}"));
    }
}

#[test]
fn enis_of_instances_that_end_are_swept_or_end_with_them() {
    for seed in 0..seeds(10) {
        let mut bed = bed(seed);
        bed.faults.chance = 20;
        bed.run(1 + seed * 3);
        bed.ec2.terminate("i-two");
        bed.nodes.remove("two");
        bed.faults.chance = 0;
        bed.run(1800);
        assert!(
            bed.loose().is_empty(),
            "seed {seed}: leaked {:?}",
            bed.loose()
        );
        let left = bed
            .ec2
            .enis
            .values()
            .filter(|eni| eni.instance().is_some_and(|it| it.as_str() == "i-two"));
        assert_eq!(left.count(), 0);
    }
}
