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
