//! The benchmark of pods that a runtime runs, in its smallest form. The cost does not matter here.

use std::time::Duration;

use testkit::cri::cost::{Provider, Verb, measure};

#[test]
fn every_way_of_a_pod_is_timed() {
    let samples = 2;
    let all = measure(&[1, 3], samples).unwrap();
    assert_eq!(all.len(), 2);
    for costs in all {
        for provider in Provider::ALL {
            for verb in Verb::ALL {
                let times = &costs[&(provider, verb)];
                println!("{provider:?} {verb:?}: {times:?}");
                assert_eq!(times.len(), samples);
                assert!(times.iter().all(|time| *time > Duration::ZERO));
            }
        }
    }
}
