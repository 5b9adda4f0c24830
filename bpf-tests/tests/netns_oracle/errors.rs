//! The ICMP errors that sequences can send.

/// One kind of error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// As sequences name it.
    pub(crate) name: &'static str,
    /// Type and code of ICMP (RFC 792, RFC 1812).
    pub(crate) v4: (u8, u8),
    /// Type and code of `ICMPv6` (RFC 4443); there is none for source quench.
    pub(crate) v6: Option<(u8, u8)>,
    /// The four bytes after the checksum.
    pub(crate) word: u32,
}

const fn kind(name: &'static str, v4: (u8, u8), v6: (u8, u8), word: u32) -> Kind {
    Kind {
        name,
        v4,
        v6: Some(v6),
        word,
    }
}

/// Every kind. The MTU is the last word's value in both families, as are pointers of IPv6; IPv4 has
/// its pointer in the first byte.
pub(crate) const KINDS: &[Kind] = &[
    kind("net-unreachable", (3, 0), (1, 0), 0),
    kind("host-unreachable", (3, 1), (1, 3), 0),
    kind("protocol-unreachable", (3, 2), (4, 1), 0),
    kind("port-unreachable", (3, 3), (1, 4), 0),
    kind("too-big", (3, 4), (2, 0), 1400),
    kind("prohibited", (3, 13), (1, 1), 0),
    kind("time-exceeded", (11, 0), (3, 0), 0),
    kind("reassembly-time-exceeded", (11, 1), (3, 1), 0),
    kind("parameter-problem", (12, 0), (4, 0), 0),
    Kind {
        name: "source-quench",
        v4: (4, 0),
        v6: None,
        word: 0,
    },
];
