//! The numbers of Cilium's own tests that are about its operator. One line here is one case there.

/// Deficit: available, used, pre-allocate, min-allocate, max-allocate, needed.
pub(crate) const NEEDED: &[(u32, u32, i32, u32, u32, u32)] = &[
    (0, 0, 0, 16, 0, 16),
    (0, 0, 8, 16, 0, 16),
    (0, 0, 16, 8, 0, 16),
    (0, 0, 16, 0, 0, 16),
    (8, 0, 0, 16, 0, 8),
    (8, 4, 8, 0, 0, 4),
    (8, 4, 8, 8, 0, 4),
    (8, 4, 8, 8, 6, 0),
    (8, 4, 8, 0, 8, 0),
    (4, 4, 8, 0, 8, 4),
];

/// Excess: available, used, pre-allocate, min-allocate, max-above-watermark, excess.
pub(crate) const EXCESS: &[(u32, u32, i32, u32, u32, u32)] = &[
    (0, 0, 0, 16, 0, 0),
    (15, 0, 8, 16, 8, 0),
    (17, 0, 8, 16, 0, 1),
    (20, 0, 8, 16, 4, 0),
    (21, 0, 8, 0, 4, 9),
    (20, 0, 8, 20, 8, 0),
    (16, 1, 8, 16, 8, 0),
    (20, 4, 8, 17, 8, 0),
    (20, 4, 8, 0, 0, 8),
    (20, 4, 8, 0, 8, 0),
];

type ReadingCase = (Option<(u32, u32)>, u32, i32, bool, u32, bool);

/// The double read: requested IPv4 and IPv6 addresses, entries of `used`, pre-allocate; the
/// generation is the new one, used addresses, an IPv6 prefix is wanted.
pub(crate) const READINGS: &[ReadingCase] = &[
    (None, 0, 8, false, 0, false),
    (None, 5, 8, false, 5, false),
    (Some((24, 0)), 0, 8, true, 16, false),
    (Some((0, 48)), 0, 8, true, 0, true),
    (Some((24, 48)), 0, 8, true, 16, true),
    (Some((0, 0)), 0, 8, true, 0, false),
    (Some((5, 0)), 0, 8, true, 0, false),
    (Some((24, 48)), 7, 8, false, 7, false),
    (Some((10, 0)), 0, -1, true, 10, false),
];

/// Most addresses of an `m5.large`: first index, addresses.
pub(crate) const ALLOCATABLE: &[(u16, u32)] = &[(0, 27), (1, 18), (4, 0)];

/// Capacity of an `m5.large`: prefixes, use-primary-address, leftover prefixes, addresses.
pub(crate) const CAPACITY: &[(bool, bool, u32, u32)] = &[
    (false, false, 0, 27),
    (false, true, 0, 30),
    (true, false, 0, 432),
    (true, true, 0, 480),
    (false, false, 1, 42),
];

/// A node over time.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) instance_type: &'static str,
    pub(crate) prefixes: bool,
    pub(crate) pre: i32,
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) above: u32,
    /// Addresses in use, and those that the node then has; at first none is in use.
    pub(crate) steps: &'static [(u32, u32)],
}

const fn scenario(name: &'static str, steps: &'static [(u32, u32)]) -> Scenario {
    Scenario {
        name,
        instance_type: name,
        prefixes: false,
        pre: 8,
        min: 0,
        max: 0,
        above: 0,
        steps,
    }
}

/// Nodes over time. What Cilium releases is released by no step of this crate, so those lines end
/// where the release would begin.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("m5.large", &[(0, 8), (7, 15)]),
    Scenario {
        prefixes: true,
        instance_type: "m5.large",
        ..scenario("m5.large with prefixes", &[(0, 16), (12, 32)])
    },
    Scenario {
        pre: -1,
        min: 10,
        ..scenario("m5.4xlarge", &[(0, 10), (8, 10)])
    },
    Scenario {
        pre: 1,
        min: 10,
        ..scenario("m3.large", &[(0, 10), (9, 10), (10, 11), (8, 11)])
    },
    Scenario {
        pre: 2,
        min: 10,
        above: 3,
        ..scenario("m4.xlarge", &[(0, 13), (11, 13), (13, 18), (10, 18)])
    },
    Scenario {
        min: 20,
        ..scenario("t2.xlarge", &[(0, 20), (40, 42)])
    },
    Scenario {
        instance_type: "m5.4xlarge",
        pre: 4,
        min: 15,
        above: 4,
        ..scenario("core mock", &[(0, 19), (11, 19), (19, 27), (10, 27)])
    },
    Scenario {
        instance_type: "m5.large",
        pre: 1,
        min: 3,
        ..scenario("abort release", &[(0, 3), (3, 4), (2, 4)])
    },
];
