//! Invariants: random sequences of all events, compared with a model of the leases alone.

mod check;
mod model;
mod waiting;
mod world;

use proptest::prelude::*;

use self::model::Run;
use self::world::{BLOCKS, Op, op};

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// Never two owners of one address, never a lost one, counts add up, an address stays in its
    /// pool, the fullest block gives, releases are idempotent, the state survives.
    #[test]
    fn nothing_is_given_twice_and_nothing_is_lost(ops in prop::collection::vec(op(), 1..80)) {
        let mut run = Run::new();
        for op in &ops {
            run.step(op);
        }
        run.finish();
    }
}

/// The owner turns out to have an address of a block whose pool is not known yet.
#[test]
fn an_endpoint_of_an_undecided_block_is_adopted_after_the_state_was_lost() {
    let announce = |blocks, pools: [u8; BLOCKS.len()]| Op::Announce {
        blocks,
        pools: pools.to_vec(),
        excluded: false,
        mars_is_v4: false,
    };
    let ops = [
        announce(0, [0; BLOCKS.len()]),
        announce(0b100_0000_0001, [7, 4, 10, 8, 2, 3, 3, 1, 0, 4, 3]),
        Op::Restart {
            file: false,
            lost: Some(9),
            stray: Some((11, 4)),
        },
        Op::Rebalance,
        Op::Adopt {
            owner: 0,
            address: 8,
        },
    ];
    let mut run = Run::new();
    for op in &ops {
        run.step(op);
    }
    run.finish();
}

/// The long form is for `cargo xtask test --full`.
fn cases() -> u32 {
    if std::env::var_os("TOWPATH_FULL").is_some() {
        20_000
    } else {
        256
    }
}

/// The sequences have to reach what they are for: else the property says little.
#[test]
fn random_sequences_reach_everything() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let mut reached = std::collections::BTreeMap::<&str, u32>::new();
    for _ in 0..100 {
        let ops = prop::collection::vec(op(), 80..81);
        let ops: Vec<Op> = ops.new_tree(&mut runner).unwrap().current();
        let mut run = Run::new();
        for op in &ops {
            run.step(op);
        }
        for name in run.reached {
            *reached.entry(name).or_default() += 1;
        }
    }
    let wanted = [
        "given",
        "given again",
        "given for want of rested ones",
        "both given",
        "both refused",
        "given explicitly",
        "restoring",
        "unknown pool",
        "exhausted",
        "no family",
        "not ready",
        "not in a block",
        "other pool",
        "barred",
        "in use",
        "cooling down",
        "draining",
        "has another",
        "orphaned",
        "expired",
        "cooled",
        "forgotten",
        "not quiet",
        "block gone",
        "moves",
        "undecided",
        "overlap",
        "released block",
        "retaken block",
        "adopted",
        "adopted at work",
        "dropped",
        "collected",
    ];
    for name in wanted {
        assert!(
            reached.contains_key(name),
            "{name} was never reached: {reached:?}"
        );
    }
}
