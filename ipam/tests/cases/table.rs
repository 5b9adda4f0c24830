//! The numbers of Cilium's own tests that are about the node (not about its operator). One line
//! here is one case there.

/// The number of requested addresses: in use or pending, pre-allocated, requested.
pub(crate) const ROUNDED_UP: &[(u64, u64, u64)] = &[
    (0, 0, 0),
    (1, 0, 1),
    (3, 0, 3),
    (0, 1, 1),
    (1, 1, 2),
    (3, 1, 4),
    (0, 16, 16),
    (1, 16, 32),
    (15, 16, 32),
    (16, 16, 32),
    (17, 16, 48),
];

/// The number of addresses of a block that are given: block, allowFirstIP, allowLastIP, addresses.
pub(crate) const CAPACITY: &[(&str, bool, bool, u64)] = &[
    ("10.0.0.0/27", false, false, 30),
    ("10.0.0.0/31", false, false, 2),
    ("10.0.0.0/32", false, false, 1),
    ("2001:db8::/64", false, false, 65534),
    ("2001:db8::/120", false, false, 254),
    ("2001:db8::/127", false, false, 2),
    ("2001:db8::/128", false, false, 1),
    ("10.0.0.0/28", true, true, 16),
    ("10.0.0.0/24", true, true, 256),
    ("2001:db8::/80", true, true, 65536),
    ("10.0.0.0/28", false, false, 14),
    ("10.0.0.0/28", true, false, 15),
    ("10.0.0.0/28", false, true, 15),
    ("10.0.0.0/24", false, false, 254),
    ("10.0.0.0/30", false, false, 2),
    ("10.0.0.0/30", true, false, 3),
    ("10.0.0.0/30", false, true, 3),
    ("10.0.0.0/30", true, true, 4),
    ("2001:db8::/126", true, true, 4),
];

/// Usable addresses, without the limit for wide blocks: block, allowFirstIP, allowLastIP, number.
pub(crate) const USABLE: &[(&str, bool, bool, u128)] = &[
    ("10.0.0.0/24", false, false, 254),
    ("10.0.0.0/30", false, false, 2),
    ("10.0.0.0/31", false, false, 2),
    ("10.0.0.0/32", false, false, 1),
    (
        "2001:db8::/48",
        false,
        false,
        1_208_925_819_614_629_174_706_174,
    ),
];

/// The first address that is given: block, allowFirstIP, address.
pub(crate) const FIRST: &[(&str, bool, &str)] = &[
    ("10.0.0.0/27", false, "10.0.0.1"),
    ("10.0.0.0/27", true, "10.0.0.0"),
    ("2001:db8::/80", true, "2001:db8::"),
];

/// The addresses of a block's window: block, inside, beyond.
pub(crate) const WINDOW: &[(&str, &str, &str)] =
    &[("2001:db8::/64", "2001:db8::fffe", "2001:db8::1:0")];

/// An ENI's blocks: prefixes, addresses, blocks. A range of addresses is written first-last.
pub(crate) const ENI_BLOCKS: &[(&[&str], &[&str], &[&str])] = &[
    (
        &["10.0.0.16/28"],
        &["10.0.0.1", "10.0.0.16-10.0.0.31"],
        &["10.0.0.1/32", "10.0.0.16/28"],
    ),
    (
        &["2001:db8:1::/80"],
        &["2001:db8::1"],
        &["2001:db8::1/128", "2001:db8:1::/80"],
    ),
    // Seed 000: a node without and one with prefix delegation.
    (
        &[],
        &["100.120.134.75", "100.120.137.182", "100.120.248.50"],
        &[
            "100.120.134.75/32",
            "100.120.137.182/32",
            "100.120.248.50/32",
        ],
    ),
    (
        &["100.121.95.96/28"],
        &["100.121.95.96-100.121.95.111"],
        &["100.121.95.96/28"],
    ),
];

/// Ownership of an address by an ENI: prefix, address, answer.
pub(crate) const ENI_HAS: &[(&str, &str, bool)] = &[
    ("10.0.1.0/28", "10.0.1.0", true),
    ("10.0.1.0/28", "10.0.1.15", true),
    ("10.0.1.0/28", "10.0.1.16", false),
];

/// Description of an ENI in an answer: address, subnet, number, gateway.
pub(crate) const ENI_RESULT: &[(&str, &str, u8, &str)] = &[
    ("10.1.1.10", "10.1.1.0/24", 1, "10.1.1.1"),
    ("2001:db8::10", "10.1.1.0/24", 1, "fe80:ec2::1"),
];

/// Rounded-up demand in a running node: pool, pre-allocated, used, requested.
pub(crate) const DEMAND: &[(&str, u32, u32, u64)] = &[
    ("default", 16, 0, 16),
    ("mars", 8, 0, 8),
    ("default", 16, 1, 32),
    // ⌈31/8⌉ and one more: a /27 with allowLastIP has 31 addresses.
    ("mars", 8, 31, 40),
    ("mars", 8, 1, 16),
];

/// Requests that wait: pool, IPv6, at which second, owner. Each counts for five minutes.
pub(crate) const PENDING: &[(&str, bool, u64, &str)] = &[
    ("test", false, 0, "a"),
    ("test", false, 30, "b"),
    ("other", false, 0, "c"),
    ("other", false, 30, "d"),
    ("other", true, 0, "c"),
    ("other", true, 0, "e"),
    ("other", true, 30, "f"),
];

/// Number of waiting owners: second, pool, IPv6, number.
pub(crate) const PENDING_COUNTS: &[(u64, &str, bool, u64)] = &[
    (30, "test", false, 2),
    (30, "other", false, 2),
    (30, "other", true, 3),
    (301, "test", false, 1),
    (301, "other", false, 1),
    (301, "other", true, 1),
    (331, "test", false, 0),
    (331, "other", true, 0),
];
