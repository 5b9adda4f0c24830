//! Recorded flow counts of endpoints, compared with the flows that sweeps find.

use super::*;

#[test]
fn a_quota_is_corrected_when_it_is_off_twice() {
    let mut sweeper = sweeper();
    let quota = |sweeper: &Sweeper<Model>| sweeper.tables.maps().quotas.get(&ENDPOINT).copied();
    let set = |sweeper: &Sweeper<Model>, flows| {
        sweeper.tables.maps().quotas.insert(ENDPOINT, flows);
    };
    sweeper.tables.maps().open(key(50_000), POD, ENDPOINT, 0);
    let around = around(&[POD]);
    let corrected =
        |sweeper: &mut Sweeper<Model>| sweeper.sweep(&around, false).unwrap().quotas.corrected;
    set(&sweeper, 5);
    assert_eq!(corrected(&mut sweeper), 0);
    set(&sweeper, 0);
    assert_eq!(corrected(&mut sweeper), 0, "off in the other direction");
    set(&sweeper, 5);
    assert_eq!(corrected(&mut sweeper), 0, "and back");
    // The smaller of both is certain.
    set(&sweeper, 6);
    assert_eq!(corrected(&mut sweeper), 1);
    assert_eq!(quota(&sweeper), Some(2));
    assert_eq!(corrected(&mut sweeper), 0);
    assert_eq!(corrected(&mut sweeper), 1);
    assert_eq!(quota(&sweeper), Some(1));
    // A count that is missing altogether.
    sweeper.tables.maps().quotas.clear();
    corrected(&mut sweeper);
    assert_eq!(corrected(&mut sweeper), 1);
    assert_eq!(quota(&sweeper), Some(1));
}

/// These flows are idle when a sweep lists them, and not idle when the reaper runs, at each sweep.
#[test]
fn flows_that_outlive_a_sweep_by_a_packet_count() {
    let mut sweeper = sweeper();
    for round in 0..4 {
        {
            let mut maps = sweeper.tables.maps();
            maps.now += 1000 * u64::from(HERTZ);
            maps.races.busy = vec![key(50_000)];
            if round == 0 {
                maps.open(key(50_000), POD, ENDPOINT, 1000);
            }
        }
        let sweep = sweeper.sweep(&around(&[POD]), false).unwrap();
        assert_eq!(
            (sweep.reaped.idle, sweep.quotas.corrected),
            (0, 0),
            "round {round}"
        );
    }
    assert_eq!(sweeper.tables.maps().quotas[&ENDPOINT], 1);
}

/// A drift in either direction is still found.
#[test]
fn flows_that_come_during_a_sweep_are_no_difference() {
    for off in [0_i64, 20, -20] {
        let mut sweeper = sweeper();
        {
            let mut maps = sweeper.tables.maps();
            for port in 50_000..50_030 {
                maps.open(key(port), POD, ENDPOINT, 0);
            }
            let quota = maps.quotas.get_mut(&ENDPOINT).unwrap();
            *quota = u32::try_from(i64::from(*quota) + off).unwrap();
            // A sweep has two scans: one for each family.
            maps.races.coming = (0..12)
                .map(|number| (key(51_000 + number), POD, ENDPOINT))
                .collect();
        }
        let sweeps = (0..6).map(|_| sweeper.sweep(&around(&[POD]), false).unwrap());
        let corrected: u64 = sweeps.map(|sweep| sweep.quotas.corrected).sum();
        assert_eq!(corrected > 0, off != 0, "off by {off}");
        // Nothing comes any more.
        for _ in 0..2 {
            sweeper.sweep(&around(&[POD]), false).unwrap();
        }
        assert_eq!(sweeper.tables.maps().quotas[&ENDPOINT], 42, "off by {off}");
    }
}

#[test]
fn flows_from_outside_have_a_count_of_their_own() {
    let mut sweeper = sweeper();
    let note = |port| PodTuple::new(protocol::UDP, at(POD, port), at(REMOTE, 2));
    {
        let mut maps = sweeper.tables.maps();
        maps.open(key(50_000), POD, ENDPOINT, 0);
        maps.quotas.insert(ENDPOINT, 1);
        for port in 1..=3 {
            maps.notes.inbound.insert(
                note(port),
                TrackedFlow::new(&note(port), START, ENDPOINT, 0),
            );
        }
    }
    let around = around(&[POD]);
    sweeper.sweep(&around, false).unwrap();
    assert_eq!(sweeper.sweep(&around, false).unwrap().quotas.corrected, 1);
    let quotas = sweeper.tables.maps().quotas.clone();
    assert_eq!(quotas, [(ENDPOINT, 1), (inbound_quota(ENDPOINT), 3)].into());
}

#[test]
fn the_fullest_quota_is_told() {
    let mut sweeper = sweeper();
    let note = |port| PodTuple::new(protocol::UDP, at(POD, port), at(REMOTE, 2));
    let fullest = |sweeper: &mut Sweeper<Model>| {
        let sweep = sweeper.sweep(&around(&[POD]), false).unwrap();
        (sweep.quotas.fullest * 1000.0).round()
    };
    assert!(fullest(&mut sweeper).abs() < f64::EPSILON);
    sweeper.tables.maps().open(key(50_003), REMOTE, 0, 0);
    assert!(
        (fullest(&mut sweeper) - 25.0).abs() < f64::EPSILON,
        "the host's"
    );
    for port in 1..=3 {
        let value = TrackedFlow::new(&note(port), START, ENDPOINT, 0);
        let mut maps = sweeper.tables.maps();
        maps.notes.inbound.insert(note(port), value);
        *maps.quotas.entry(inbound_quota(ENDPOINT)).or_default() += 1;
    }
    assert!(
        (fullest(&mut sweeper) - 150.0).abs() < f64::EPSILON,
        "from outside"
    );
    for port in 50_010..50_015 {
        sweeper.tables.maps().open(key(port), POD, ENDPOINT, 0);
    }
    assert!(
        (fullest(&mut sweeper) - 500.0).abs() < f64::EPSILON,
        "translated"
    );
}

/// The counters of an endpoint that exists stay: it may open a flow at this very moment.
#[test]
fn counts_go_with_their_endpoint() {
    let mut sweeper = sweeper();
    let counts = [
        0,
        ENDPOINT,
        inbound_quota(ENDPOINT),
        ENDPOINT + 1,
        inbound_quota(ENDPOINT + 1),
    ];
    let quotas = counts.into_iter().map(|key| (key, 0));
    sweeper.tables.maps().quotas.extend(quotas);
    let left = |sweeper: &Sweeper<Model>| -> Vec<u32> {
        sweeper.tables.maps().quotas.keys().copied().collect()
    };
    // The set of endpoints is unknown.
    for _ in 0..2 {
        sweeper.sweep(&SweepInput::default(), false).unwrap();
        assert_eq!(left(&sweeper).len(), counts.len());
    }
    // An endpoint that is to exist, and does not yet, keeps no count of another one.
    sweeper.sweep(&around(&[POD, OTHER]), false).unwrap();
    assert_eq!(left(&sweeper), [0, ENDPOINT, inbound_quota(ENDPOINT)]);
    let mut sweeper = self::sweeper();
    sweeper.tables.maps().quotas.insert(ENDPOINT + 1, 0);
    let sweep = sweeper.sweep(&around(&[POD]), false).unwrap();
    assert_eq!(left(&sweeper), [ENDPOINT + 1], "at the second look only");
    assert!(sweep.is_urgent);
    let sweep = sweeper.sweep(&around(&[POD]), false).unwrap();
    assert!(left(&sweeper).is_empty() && !sweep.is_urgent);
}
