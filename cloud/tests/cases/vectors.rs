//! The lines of the table that are about one formula, each tried.

use cloud::Limits;
use cloud::want::{
    Capacity, Demand, Generation, Reading, Requested, Watermarks, excess, max_allocatable, needed,
    pre_allocate,
};

use super::table;

const M5_LARGE: Limits = Limits {
    adapters: 3,
    slots: 9,
    slots_v6: 10,
    prefixes: true,
};

#[test]
fn deficits() {
    for &(available, used, pre, min, max, expected) in table::NEEDED {
        let marks = Watermarks {
            pre,
            min,
            max,
            above: 0,
        };
        assert_eq!(
            needed(available, used, &marks),
            expected,
            "{available} {used} {marks:?}"
        );
    }
}

#[test]
fn excesses() {
    for &(available, used, pre, min, above, expected) in table::EXCESS {
        let marks = Watermarks {
            pre,
            min,
            max: 0,
            above,
        };
        assert_eq!(
            excess(available, used, &marks),
            expected,
            "{available} {used} {marks:?}"
        );
    }
}

#[test]
fn readings() {
    for &(requested, used, pre, newer, expected, ipv6) in table::READINGS {
        let requested = requested.map(|(ipv4, ipv6)| Requested { ipv4, ipv6 });
        let reading = Reading::of(&Demand { requested, used }, pre);
        let generation = if newer {
            Generation::Requested
        } else {
            Generation::Used
        };
        assert_eq!(
            reading,
            Reading {
                generation,
                used: expected,
                ipv6
            },
            "{requested:?} {used}"
        );
    }
    assert_eq!(
        [pre_allocate(0), pre_allocate(16), pre_allocate(-1)],
        [8, 16, -1]
    );
}

#[test]
fn capacities() {
    for &(first_index, expected) in table::ALLOCATABLE {
        let capacity = Capacity {
            first_index,
            ..Capacity::default()
        };
        assert_eq!(
            max_allocatable(Some(&M5_LARGE), &capacity),
            expected,
            "{first_index}"
        );
        assert_eq!(max_allocatable(None, &capacity), 0);
    }
    for &(prefixes, use_primary, leftover_prefixes, expected) in table::CAPACITY {
        let capacity = Capacity {
            prefixes,
            use_primary,
            leftover_prefixes,
            ..Capacity::default()
        };
        assert_eq!(
            capacity.addresses(Some(&M5_LARGE)),
            expected,
            "{capacity:?}"
        );
        assert_eq!(capacity.addresses(None), 0);
    }
    let excluded = Capacity {
        excluded: 1,
        ..Capacity::default()
    };
    assert_eq!(excluded.addresses(Some(&M5_LARGE)), 18);
}
