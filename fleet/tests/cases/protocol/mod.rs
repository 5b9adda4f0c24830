//! Release by agents and operators, interleaved at random: an address that a pod has is never taken
//! from its ENI.

mod agent;
mod play;

use self::play::Play;

/// Plays, and the steps of each.
fn extent() -> (u64, u64) {
    match std::env::var_os("TOWPATH_FULL") {
        Some(_) => (200, 5_000),
        None => (10, 2_000),
    }
}

#[test]
fn no_address_is_both_given_and_unassigned() {
    let mut total = play::Counts::default();
    let (plays, steps) = extent();
    for seed in 0..plays {
        let mut play = Play::new(seed);
        for _ in 0..steps {
            play.step();
        }
        total += play.end();
    }
    // Everything that can go wrong has gone wrong.
    assert!(total.unassigned > 20 && total.reclaimed > 20, "{total:?}");
    assert!(total.takeovers > 5 && total.made_again > 5, "{total:?}");
    assert!(total.late_writes > 20 && total.late_calls > 2, "{total:?}");
}
