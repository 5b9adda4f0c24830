//! Application of the masquerade policy: to flows by the desired map entries, and to a packet by
//! the live maps.

mod engine;
mod explain;

pub use self::engine::PolicyEngine;
pub use self::explain::{Live, Packet, unknown_source};

use std::net::IpAddr;

use ipam::Family;
use ipnet::IpNet;

/// The longest prefix of an address for which `get` has a value, and that value.
fn longest<T>(address: IpAddr, get: impl Fn(IpNet) -> Option<T>) -> Option<(IpNet, T)> {
    let lengths = (0..=Family::of(address).host_length()).rev();
    let mut prefixes = lengths.filter_map(|length| IpNet::new(address, length).ok());
    prefixes.find_map(|net| {
        let net = net.trunc();
        Some((net, get(net)?))
    })
}
