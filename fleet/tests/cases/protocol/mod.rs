//! Release by agents and operators, interleaved at random: an address that a pod has is never taken
//! from its ENI.

mod agent;
mod cilium;
mod foreign;
mod play;

use std::thread;

use serde_json::json;

use self::agent::Agent;
pub(crate) use self::play::Random;
use self::play::{Counts, Play};

/// Plays, and the steps of each.
fn extent() -> (u64, u64) {
    match std::env::var_os("TOWPATH_FULL") {
        Some(_) => (200, 5_000),
        None => (20, 2_000),
    }
}

fn play(seed: u64, steps: u64) -> Counts {
    let mut play = Play::new(seed);
    for _ in 0..steps {
        play.step();
    }
    play.end()
}

#[test]
fn no_address_is_both_given_and_unassigned() {
    let (plays, steps) = extent();
    let halves: Vec<Counts> = thread::scope(|scope| {
        let half = |first| {
            scope.spawn(move || {
                let mut sum = Counts::default();
                for seed in (first..plays).step_by(2) {
                    sum += play(seed, steps);
                }
                sum
            })
        };
        let halves = [half(0), half(1)];
        halves.map(|half| half.join().unwrap()).into()
    });
    let mut total = Counts::default();
    for half in halves {
        total += half;
    }
    // Everything that can go wrong has gone wrong.
    assert!(total.unassigned > 20 && total.reclaimed > 20, "{total:?}");
    assert!(total.takeovers > 5 && total.made_again > 5, "{total:?}");
    assert!(total.late_writes > 20 && total.late_calls > 2, "{total:?}");
    assert!(total.foreign > 20 && total.restored > 5, "{total:?}");
    assert!(total.moved > 2, "{total:?}");
    assert!(total.reused > 20 && total.raced > 2, "{total:?}");
}

/// The claims of an object protect its blocks while its agent does not reach the API server. Pods
/// keep their addresses in that time. If another program creates the object without the claims, no
/// agent can write them.
#[test]
fn beside_another_operator_only_the_agent_may_create_the_object_again() {
    for seed in 0..4 {
        let by_agent = Play::new(seed).replace(Agent::pools_of_new_object);
        assert!(!by_agent, "play {seed}");
        let by_others = Play::new(seed).replace(|_| json!({}));
        assert!(
            by_others,
            "play {seed}: the bound in docs/guide/kubernetes.md is gone"
        );
    }
}
