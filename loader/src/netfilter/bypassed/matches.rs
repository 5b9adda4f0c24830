//! Matches of iptables, which both of its forms hand to the kernel in the same structures.

use std::net::IpAddr;

use super::rule::{Name, range};
use ipam::Family;

/// Bits of `struct xt_iprange_mtinfo` in `include/uapi/linux/netfilter/xt_iprange.h` that enable a
/// range, with the range's offset: two addresses of 16 bytes each. The bits follow both ranges.
const RANGES: [(u8, usize); 2] = [(1, 0), (2, 32)];
const RANGE_BITS: usize = 64;

/// The things that a match names.
pub(super) fn names(family: Family, name: &str, info: &[u8]) -> Vec<Name> {
    match name {
        "set" => vec![Name::Set("of ipset".to_owned())],
        "iprange" => RANGES
            .into_iter()
            .filter(|(bit, _)| info.get(RANGE_BITS).is_some_and(|bits| bits & bit != 0))
            .filter_map(|(_, at)| {
                Some((address(family, info, at)?, address(family, info, at + 16)?))
            })
            .flat_map(|(first, last)| range(first, last))
            .collect(),
        _ => Vec::new(),
    }
}

fn address(family: Family, info: &[u8], at: usize) -> Option<IpAddr> {
    Some(match family {
        Family::V4 => <[u8; 4]>::try_from(info.get(at..at + 4)?).ok()?.into(),
        Family::V6 => <[u8; 16]>::try_from(info.get(at..at + 16)?).ok()?.into(),
    })
}

/// The text up to the first zero byte.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let bytes = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}
