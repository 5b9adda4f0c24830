//! Addresses that no network routes.

use datapath_common::abi::DestinationClass;

/// Prefixes of IANA's special-purpose registries (RFC 6890) that are neither forwarded nor
/// destinations on a link.
///
/// Link-local addresses and 100.64.0.0/10 are in use, and documentation's prefixes in laboratories.
/// IPv4-mapped IPv6 addresses (`::ffff:0:0/96`) are malformed in a packet, and 255.255.255.255 is
/// broadcast: the programs handle both before this look-up.
pub(super) const PREFIXES: [(&str, &str); 9] = [
    ("0.0.0.0/8", "\"this network\" (RFC 791)"),
    ("127.0.0.0/8", "loopback (RFC 1122)"),
    ("192.0.0.8/32", "dummy address (RFC 7600)"),
    ("192.0.0.170/31", "discovery of NAT64 (RFC 8880)"),
    ("240.0.0.0/4", "reserved (RFC 1112)"),
    ("::/96", "unspecified, loopback, IPv4-compatible (RFC 4291)"),
    ("100::/64", "discard-only (RFC 6666)"),
    ("100:0:0:1::/64", "dummy prefix (RFC 9780)"),
    ("fec0::/10", "site-local (RFC 3879)"),
];

/// Classes that make an address part of a known network, whatever the registries say.
const NAMING: DestinationClass = DestinationClass::SERVICE
    .union(DestinationClass::BLOCK)
    .union(DestinationClass::VPC)
    .union(DestinationClass::NATIVE);

/// The classes of a prefix by those of all prefixes that contain it, from the widest on: of what is
/// unroutable and what names a network, the longer prefix counts.
pub(super) fn classes(
    widest_first: impl IntoIterator<Item = DestinationClass>,
) -> DestinationClass {
    let start = (DestinationClass::NONE, false);
    let (all, is_unroutable) = widest_first
        .into_iter()
        .fold(start, |(all, is_unroutable), one| {
            let is_named = one.intersects(NAMING);
            let is_listed = one.contains(DestinationClass::UNROUTABLE);
            let is_unroutable = !is_named && (is_listed || is_unroutable);
            (
                all.union(one.without(DestinationClass::UNROUTABLE)),
                is_unroutable,
            )
        });
    if is_unroutable {
        all.union(DestinationClass::UNROUTABLE)
    } else {
        all
    }
}
